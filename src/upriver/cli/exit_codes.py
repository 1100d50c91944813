"""Exit codes of commands whose status is their result (``check``, ``verify``).

Status 0 and 1 are results; 2 means that the command failed, and 130 that it was interrupted.
"""

from __future__ import annotations

from typing import IO, Any, Final

import click

from ..errors import UpriverError

__all__ = ["INTERRUPTED", "Question"]

#: The status of shells for a program that was ended by SIGINT: 128 plus the signal's number.
INTERRUPTED: Final = 130


class _Trouble(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file, err=True)


class Question(click.Command):
    """A command whose exit status is its result."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UpriverError as problem:
            if context.find_root().params.get("debug"):
                raise
            raise _Trouble(str(problem)) from None
        except KeyboardInterrupt:
            context.exit(INTERRUPTED)
