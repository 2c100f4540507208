"""millstream pipeline submit-line: the spark-submit line of a pipeline, for YARN and Kubernetes."""

from __future__ import annotations

import click

from millstream.cli.pipeline.common import parse_pairs


@click.command("submit-line", context_settings={"allow_interspersed_args": False})
@click.option("--master", required=True, metavar="MASTER", help="yarn, k8s://https://host:6443 or spark://….")
@click.option("--deploy-mode", default="cluster", show_default=True, help="cluster or client.")
@click.option("--environment", metavar="FILE", help="A packed environment with Millstream in it (YARN).")
@click.option("--image", metavar="IMAGE", help="With Spark and Millstream in it (Kubernetes).")
@click.option("--program", metavar="PATH", help="Where the cluster finds millstream/spark/submitted.py.")
@click.option("--ship", is_flag=True, help="Send this package to nodes that have only its dependencies.")
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="For Spark; repeatable."
)
@click.argument("pipeline", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PIPELINE [OPTIONS]...")
@click.pass_context
def command(
    context: click.Context,
    master: str,
    deploy_mode: str,
    environment: str | None,
    image: str | None,
    program: str | None,
    ship: bool,
    conf: dict[str, str],
    pipeline: tuple[str, ...],
) -> None:
    """Show the line that runs a pipeline on a cluster which starts the driver itself. Nothing is started.

    The options for the cluster come first, then the pipeline as it is called otherwise:
    millstream pipeline submit-line --master yarn archive --url … --history --table …
    """
    from millstream.spark.submit import Submission, submit_line  # noqa: PLC0415 - few need it

    submission = Submission(
        master=master,
        deploy_mode=deploy_mode,
        environment=environment,
        image=image,
        program=program,
        ship=ship,
        conf=conf,
    )
    line = submit_line(pipeline, submission)
    _check(context, pipeline[0], list(pipeline[1:]))
    click.echo(line)


def _check(context: click.Context, name: str, arguments: list[str]) -> None:
    """Let the pipeline's own command read its arguments, and raise what it raises. It is not run."""
    from millstream.cli.pipeline import PIPELINES  # noqa: PLC0415 - that module imports this one's package
    from millstream.cli.pipeline import command as pipelines  # noqa: PLC0415

    runnable = [known for known in PIPELINES if known not in ("prepare", "submit-line")]
    if name not in runnable:
        raise click.UsageError(f"{name!r} is no pipeline; use one of: {', '.join(runnable)}")
    found = pipelines.get_command(context, name)
    assert found is not None
    with found.make_context(name, arguments, parent=context.parent):
        pass
