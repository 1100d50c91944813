"""Functions on DataFrames of change rows: fold, parse, retract, changes by key."""
