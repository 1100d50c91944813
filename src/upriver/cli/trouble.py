"""Commands that answer a question with their exit status, and must not fail with an answer.

Status 0 and 1 are answers there; 2 says that there is none, and 130 that somebody gave up waiting.
"""

from __future__ import annotations

from typing import IO, Any, Final

import click

from ..errors import UpriverError

__all__ = ["INTERRUPTED", "Question"]

#: What shells make of a program that ended by SIGINT: 128 and the signal's number.
INTERRUPTED: Final = 130


class _Trouble(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file, err=True)


class Question(click.Command):
    """Such a command."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UpriverError as problem:
            if context.find_root().params.get("debug"):
                raise
            raise _Trouble(str(problem)) from None
        except KeyboardInterrupt:
            context.exit(INTERRUPTED)
