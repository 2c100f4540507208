"""millstream version."""

from __future__ import annotations

import platform

import click

import millstream


@click.command("version")
def command() -> None:
    """Say which version this is, and of which Python."""
    click.echo(f"millstream {millstream.__version__} (Python {platform.python_version()})")
