"""A click group that suggests a command for a mistyped name."""

from __future__ import annotations

import difflib

import click


class SuggestingGroup(click.Group):
    """As click's group, which suggests options but no commands that are imported late."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not near:
                raise
            meant = " or ".join(repr(name) for name in near)
            raise click.UsageError(
                f"No such command {args[0]!r}. Did you mean {meant}?", ctx
            ) from None
