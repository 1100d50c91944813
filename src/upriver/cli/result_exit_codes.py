"""Exit codes of commands whose status is their result (``check``, ``verify``).

Status 0 and 1 are results; 2 means that the command failed, and 130 that it was interrupted.
"""

from __future__ import annotations

from typing import IO, Any

import click

from ..errors import UpriverError
from .common_options import is_debugging


class _Trouble(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file, err=True)


class ResultCommand(click.Command):
    """A command whose exit status is its result."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UpriverError as problem:
            if is_debugging():
                raise
            raise _Trouble(str(problem)) from None
