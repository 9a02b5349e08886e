"""Numbers formatted for a terminal: durations, ranges, times, sizes. Standard library only.

The page formats the same numbers with typographic spaces and dashes; here they are ASCII, for grep.
"""

from __future__ import annotations

import math
import time

__all__ = ["bar", "bytes_text", "clock", "day_or_clock", "duration", "number", "percent", "place", "span"]


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units: "0.3 s", "41 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"; "-": unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s" if whole % 60 else f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def clock(at_s: float) -> str:
    """Format a local time: "14:31"."""
    return time.strftime("%H:%M", time.localtime(at_s))


def day_or_clock(at_s: float, now_s: float) -> str:
    """Format a time as "14:31" today, "12 Mar" on another day, "12 Mar 2024" in another year."""
    then, now = time.localtime(at_s), time.localtime(now_s)
    if then.tm_year != now.tm_year:
        return f"{then.tm_mday} {time.strftime('%b %Y', then)}"
    if then.tm_yday != now.tm_yday:
        return f"{then.tm_mday} {time.strftime('%b', then)}"
    return clock(at_s)


def span(low_s: float, high_s: float, now_s: float) -> str:
    """Format a range of times: "14:52-14:55", or one time if both look the same."""
    low, high = day_or_clock(low_s, now_s), day_or_clock(high_s, now_s)
    return low if low == high else f"{low}-{high}"


def percent(fraction: float | None) -> str:
    """Format a percentage: "24%"; "-" if unknown. Shows 100% only at the end."""
    if fraction is None:
        return "-"
    return "100%" if fraction >= 1 else f"{min(99, int(fraction * 100))}%"


def bar(fraction: float, width: int = 20) -> str:
    """Draw a bar of block characters, full only at 1."""
    filled = width if fraction >= 1 else min(width - 1, max(0, int(fraction * width + 0.5)))
    return "█" * filled + "░" * (width - filled)


def number(value: float) -> str:
    """Format three significant digits ("0.412", "84.1"), integers with commas ("11,730"), "NaN" and "∞"."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def place(epoch: int, epochs: int | None, step: int) -> str:
    """Format a position in training: "epoch 3/12", "epoch 3", or "step 1,051" if epochs are unknown."""
    if not (epoch or epochs):
        return f"step {number(step)}"
    return f"epoch {epoch}" + (f"/{epochs}" if epochs else "")


def bytes_text(count: int, *, binary: bool = False) -> str:
    """Format a size: "44.8 MB" for files; with `binary`, "21.4 GiB" for memory."""
    base, units = (1024, ("B", "KiB", "MiB", "GiB", "TiB")) if binary else (1000, ("B", "kB", "MB", "GB", "TB"))
    size, step = float(count), 0
    while size >= base and step < len(units) - 1:
        size, step = size / base, step + 1
    return f"{count} B" if step == 0 else f"{size:.1f} {units[step]}"
