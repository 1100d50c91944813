"""Figures that ``upriver serve`` and ``upriver dashboard`` give to the dashboard."""
