"""Every snippet of the documentation runs.

A ```python block runs in a fresh namespace and an empty folder; in a ```console block each line that begins
with `$ millstream ` is executed and must succeed. `redis://localhost:6379` in them becomes a server that the
test started. A block right after `<!-- no-run: reason -->` is skipped.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from millstream.cli.pipeline import command as group
from millstream.registry import default_registry

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:^<!--\s*no-run:\s*(?P<reason>.*?)\s*-->[ \t]*\n\s*)?"
    r"^(?P<indent>[ \t]*)```(?P<language>python|console)[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = "$ millstream "
DEFAULT_REDIS = "redis://localhost:6379"


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("code"))
        found.append(Snippet(page, line, match["language"], code, match["reason"]))
    return found


ALL = [snippet for page in PAGES for snippet in snippets(page)]


def commands(snippet: Snippet) -> list[str]:
    joined = snippet.code.replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith(COMMAND)]


def on_a_server(text: str, request: pytest.FixtureRequest) -> str:
    """The text with a real, empty server where it speaks of the local default."""
    if DEFAULT_REDIS not in text:
        return text
    server = request.getfixturevalue("valkey")
    with server.client() as client:
        client.flushall()
    return text.replace(DEFAULT_REDIS, f"redis://127.0.0.1:{server.port}")


def move_spark(folder: Path) -> None:
    """Let a Java that an earlier test of this process started mean ``folder`` by a relative path, too."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    java: Any = SparkContext._jvm
    if java is not None:
        java.java.lang.System.setProperty("user.dir", str(folder))  # for what opens its files anew
        files = java.org.apache.hadoop.fs
        files.FileSystem.get(java.org.apache.hadoop.conf.Configuration()).setWorkingDirectory(
            files.Path(str(folder))
        )


@pytest.mark.parametrize("snippet", [s for s in ALL if s.language == "python"], ids=str)
def test_a_python_snippet_runs(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if snippet.reason is not None:
        pytest.skip(f"marked no-run: {snippet.reason}")
    monkeypatch.chdir(tmp_path)
    move_spark(tmp_path)
    # Job types that it declares are its own; a cron job among them would tick in every queue of this process.
    monkeypatch.setattr(default_registry, "_types", dict(default_registry._types))
    # The lines of the page, so that a traceback points at them.
    code = compile("\n" * snippet.line + on_a_server(snippet.code, request), str(snippet.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("snippet", [s for s in ALL if s.language == "console" and commands(s)], ids=str)
def test_a_console_snippet_runs(snippet: Snippet, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if snippet.reason is not None:
        pytest.skip(f"marked no-run: {snippet.reason}")
    binaries = str(Path(sys.executable).parent)
    for command in commands(snippet):
        done = subprocess.run(
            shlex.split(on_a_server(command, request), comments=True),
            cwd=tmp_path,
            env={**os.environ, "PATH": binaries + os.pathsep + os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{snippet}: {command}\n{done.stdout}{done.stderr}"


def pipelines(snippet: Snippet) -> list[list[str]]:
    """The pipelines that a snippet calls, each as a list of words."""
    called = [shlex.split(command, comments=True)[1:] for command in commands(snippet)]
    return [words[1:] for words in called if words[0] == "pipeline" and not words[1].startswith("-")]


@pytest.mark.parametrize("snippet", [s for s in ALL if s.reason is not None and pipelines(s)], ids=str)
def test_a_pipeline_that_is_not_run_is_called_rightly(snippet: Snippet) -> None:
    for name, *arguments in pipelines(snippet):
        found = group.get_command(click.Context(group), name)
        assert found is not None, name
        with found.make_context(name, arguments):
            pass


def test_snippets_are_found_with_their_line_and_mark(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert page.exists()
    text = (
        "# T\n\n```python\na = 1\n```\n\n<!-- no-run: needs a cluster -->\n```python\nb\n```\n\n"
        "- item\n  ```console\n  $ millstream demo  # the tour\n  output\n  ```\n```toml\nx = 1\n```\n"
    )
    sample = tmp_path / "page.md"
    sample.write_text(text)
    found = [(s.line, s.language, s.code, s.reason) for s in snippets(sample)]
    assert found == [
        (3, "python", "a = 1\n", None),
        (8, "python", "b\n", "needs a cluster"),
        (13, "console", "$ millstream demo  # the tour\noutput\n", None),
    ]


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            elsewhere = "://" in target or target.startswith("mailto:")
            if not elsewhere and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
