"""The command line: ``millstream --help``. One module per command; each is imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

import millstream
from millstream.cli.common import exit_code_of

# The order is that of the help: first steps, daily work, looking after things.
COMMANDS = {
    "demo": "A tour in ten seconds: jobs, retries, dead letters and events, without a server.",
    "worker": "Run the jobs of an application: millstream worker app:queue.",
    "push": 'Push a task by name: millstream push email.send \'{"to": "x"}\'.',
    "status": "How many jobs are where, and which workers are alive.",
    "dlq": "Dead letters: list, show, edit, retry and clear what failed for good.",
    "archive": "What happened to jobs: list, show, search, and restore what was pending.",
    "schedule": "What is due next.",
    "outbox": "Relay the jobs of an outbox in a SQL database, and look into it.",
    "stream": "Look into event streams, add to them, and trim them.",
    "pipeline": "Spark pipelines: archive, metrics, replay, project, enqueue.",
    "migrate": "Create or update the tables in a SQL database.",
    "bench": "Measure this version (in a checkout of the project).",
    "version": "Say which version this is.",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for: ``--help`` and ``push`` stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"millstream.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Where the jobs are: --url, --connection (a name in millstream.toml), or MILLSTREAM_URL.",
)
@click.version_option(millstream.__version__, prog_name="millstream", message="%(prog)s %(version)s")
def cli() -> None:
    """Millstream: a job queue and event-stream broker, modelled on Redis Streams."""


def main() -> None:
    """The program. Exit codes: 0 it worked, 1 it did not, 2 it was called wrongly."""
    try:
        sys.exit(cli.main(prog_name="millstream", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has gone, as in `millstream … | head`
        sys.exit(0)
    except Exception as error:  # ours become one readable line; any other is shown in full
        code = exit_code_of(error)
        if code is None:
            raise
        click.echo(f"Error: {error}", err=True)
        sys.exit(code)
