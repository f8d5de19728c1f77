"""A report in a browser: how to open it, what is on it, and what it must not do."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE, SOON = 120_000, 60_000  # milliseconds
DESKTOP, PHONE = (1280, 900), (390, 844)

READY = f"""() => Promise.race([
    window.howsmooth.ready.then(() => null),
    new Promise((_, refuse) => setTimeout(() => refuse(new Error("the charts were not drawn in time")), {PATIENCE})),
])"""

# Puts everything back that a reader can change: filters, axes, the chosen layer, the colouring, what is unfolded.
RESET = """() => {
    const filters = document.getElementById("filters"), changed = () => new Event("change", {bubbles: true});
    filters.reset();
    for (const details of document.querySelectorAll("details")) details.open = false;
    for (const first of document.querySelectorAll("fieldset.colouring input[value=sensitivity]")) first.checked = true;
    for (const closer of document.querySelectorAll(".closer")) {
        const select = closer.querySelector("select.chosen-layer");
        select.value = closer.dataset.layers.split(" ")[0];
        select.dispatchEvent(changed());
    }
    filters.dispatchEvent(changed());
    document.activeElement.blur();
    window.scrollTo(0, 0);
}"""

# Colours as the eye gets them: computed, laid over whatever lies behind, and the contrast that WCAG 2 defines.
COLOURS = """
const brush = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function over(colours) {
    brush.clearRect(0, 0, 1, 1);
    for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
}
function behind(element) {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    return ["white", ...layers];
}
function luminance(rgb) {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}
"""


@dataclass
class Watch:
    """What a page did that a report never does."""

    own: str
    complaints: list[str] = field(default_factory=list)

    def follow(self, page: "Page") -> None:
        """Note errors, warnings, dialogs, new windows, and every request but the one for the page itself."""
        note = self.complaints.append
        page.on("console", lambda said: note(f"console: {said.text}") if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: note(f"window: {other.url}"))
        page.on("websocket", lambda socket: note(f"request: {socket.url}"))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if url.split("#")[0] != self.own and not url.startswith(("data:", "blob:")):
            self.complaints.append(f"request: {url}")


@dataclass(frozen=True)
class Report:
    """A report that is open in a browser."""

    page: "Page"
    watch: Watch

    def bring_to_front(self) -> None:
        """Let this page be the one that is looked at: behind others, a page draws once a second."""
        self.page.bring_to_front()

    def settle(self) -> None:
        """Wait until everything is drawn."""
        self.page.evaluate(READY)

    def reset(self) -> None:
        """Put everything back as it was when the page was opened."""
        self.page.mouse.move(1, 1)
        self.page.evaluate(RESET)
        self.settle()

    def find(self, selector: str) -> "Locator":
        """Return what a selector finds on the page."""
        return self.page.locator(selector)

    def chart(self, name: str) -> "Locator":
        """Return the chart of a name; in runs with several measurements something stands before it."""
        return self.find(f'figure.chart[data-chart$="{name}"]').first

    def chart_names(self) -> list[str]:
        """Return the names of all charts in the order of the page."""
        return self.page.eval_on_selector_all("figure.chart", "all => all.map(figure => figure.dataset.chart)")

    def colours(self, script: str) -> Any:
        """Run a script that may use ``over``, ``behind``, ``luminance`` and ``contrast``."""
        return self.page.evaluate(f"() => {{ {COLOURS} {script} }}")

    def open_details(self) -> None:
        """Unfold everything that is folded."""
        self.page.eval_on_selector_all("details", "all => all.forEach(details => { details.open = true; })")

    def numbers(self, name: str) -> list[list[str]]:
        """Return the table behind a chart, row by row, as far as it is shown."""
        self.open_details()
        return (
            self.chart(name)
            .locator("details.numbers table")
            .evaluate_all(
                """tables => tables.flatMap(table => [...table.rows]).map(row => [...row.cells]
                .filter(cell => cell.checkVisibility()).map(cell => cell.innerText.trim())).filter(row => row.length)"""
            )
        )

    def marks(self, name: str) -> int:
        """Count what is drawn of the data of a chart."""
        return self.chart(name).locator("svg g.role-mark :is(path, text, line)").count()

    def drawing(self, name: str) -> str:
        """Return the drawing itself."""
        return self.chart(name).locator("div.drawing svg").first.evaluate("svg => svg.outerHTML")

    def labels(self, name: str) -> list[str]:
        """Return the labels of the axes."""
        return self.chart(name).locator("svg .role-axis-label text").all_text_contents()

    def hover(self, point: "Locator") -> None:
        """Move the mouse onto the middle of something, coming from elsewhere."""
        point.scroll_into_view_if_needed()
        self.page.mouse.move(1, 1)
        # words that go on in the next line are two boxes, and nothing may be in the middle of both
        x, y = point.evaluate("""point => {
            const [box] = [...point.getClientRects()].sort((one, other) => other.width - one.width);
            return [box.x + box.width / 2, box.y + box.height / 2];
        }""")
        self.page.mouse.move(x, y, steps=2)

    def tooltip(self, selector: str) -> "Locator":
        """Return the tooltip, which must be there."""
        tooltip = self.find(selector)
        tooltip.wait_for(state="visible", timeout=SOON)
        return tooltip


@contextmanager
def opened(
    browser: "Browser", path: Path, *, scheme: str = "light", size: tuple[int, int] = DESKTOP, scripts: bool = True
) -> Iterator[Report]:
    """Open a report as nobody has seen it before: no storage, no network, no history."""
    context = browser.contexts[0] if scripts else browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    context.set_offline(True)
    try:
        page, watch = context.new_page(), Watch(path.as_uri())
        watch.follow(page)
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        page.goto(path.as_uri())
        report = Report(page, watch)
        if scripts:
            report.settle()
        yield report
    finally:
        if scripts:  # the others stay open
            page.evaluate("try { localStorage.clear(); } catch { /* there is none */ }")
            page.close()
        else:
            context.close()


Open = Callable[..., Report]


def numbers_in(text: str) -> list[float]:
    """Return the numbers that a text shows.

    >>> numbers_in("14.97 (14.5–15.9), 1.1e+04, −0.05, 11,000")
    [14.97, 14.5, 15.9, 11000.0, -0.05, 11000.0]
    """
    found = re.findall(r"(?<![\d.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+−-]?\d+)?", text)
    return [float(number.replace(",", "").replace("−", "-")) for number in found]
