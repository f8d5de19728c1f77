"""The tests themselves: what a report must not do would be noticed."""

import pytest

from browser.pages import SOON, opened

PAGE = "<!doctype html><title>t</title><script>window.howsmooth = {{ready: Promise.resolve()}}; {}</script>{}"


@pytest.mark.parametrize(
    ("script", "body", "complaint"),
    [
        ("console.error('no')", "", "console: no"),
        ("setTimeout(() => { throw new Error('thrown') })", "", "error: thrown"),
        ("Promise.reject(new Error('rejected'))", "", "error: rejected"),
        ("fetch('https://example.org/x').catch(() => 0)", "", "request: https://example.org/x"),
        ("", "<img src='https://example.org/x.png'>", "request: https://example.org/x.png"),
        ("", "<style>body {background: url(neighbour.png)}</style>", "neighbour.png"),
        ("", "<link rel=stylesheet href='//example.org/x.css'>", "x.css"),
        ("alert('hello')", "", "dialog: hello"),
    ],
)
def test_what_a_page_does_behind_the_scenes_is_noticed(browser, tmp_path, script, body, complaint):
    path = tmp_path / "page.html"
    path.write_text(PAGE.format(script, body), encoding="utf-8")
    with opened(browser, path) as report:
        report.page.wait_for_load_state("load")
        for _try in range(SOON // 20):
            if noticed(report, complaint):
                break
            report.page.wait_for_timeout(20)
    assert noticed(report, complaint)


def noticed(report, complaint):
    return any(complaint in noted for noted in report.watch.complaints)


def test_a_page_that_does_nothing_wrong_is_quiet(open_report, tmp_path):
    path = tmp_path / "a page #1 <b>.html"
    path.write_text(PAGE.format("", "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"), encoding="utf-8")
    assert open_report(path).watch.complaints == []


def test_charts_that_are_never_drawn_are_not_waited_for(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("browser.pages.READY", "() => Promise.race([new Promise(() => 0), Promise.reject('late')])")
    path = tmp_path / "page.html"
    path.write_text(PAGE.format("", ""), encoding="utf-8")
    with pytest.raises(Exception, match="late"), opened(browser, path):
        pass
