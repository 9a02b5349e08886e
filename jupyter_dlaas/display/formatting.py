"""Numbers formatted for a terminal: durations, ranges, times, sizes. Standard library only.

The page writes the same numbers (`tests/golden/formats.json`). Ranges have a plain hyphen here, so that they can be
grepped.
"""

from __future__ import annotations

import math
import time

__all__ = ["bar", "bytes_text", "clock", "day_or_clock", "duration", "number", "percent", "place", "span"]


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units: "38 ms", "0.3 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"; "-": unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "-"
    if 0 < seconds < 0.0995:
        return f"{_half_up(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{_half_up(seconds * 10) / 10:g} s"
    whole = _half_up(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 86_400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes:02d} min" if minutes else "")
    hours = whole % 86_400 // 3600
    return f"{whole // 86_400} d" + (f" {hours} h" if hours else "")


def _half_up(value: float) -> int:
    """Round as JavaScript does, so that the page shows the same number."""
    return math.floor(value + 0.5)


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
    return "100%" if fraction >= 1 else f"{min(99, math.floor(fraction * 100 + 1e-9))}%"


def bar(fraction: float, width: int = 20) -> str:
    """Draw a bar of block characters, full only at 1."""
    filled = width if fraction >= 1 else min(width - 1, max(0, int(fraction * width + 0.5)))
    return "█" * filled + "░" * (width - filled)


def number(value: float) -> str:
    """Format an int with commas ("11,730"), a float with three significant digits ("0.412", "84.1"), "NaN" or "∞"."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent):+d}"
    if abs(value) >= 1000:
        return f"{_half_up(value):,}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


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
