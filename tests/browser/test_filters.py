"""Filters and switches change what is shown, and back again."""

from browser.runs import LAYERS

BY_LAYER = ("constant_against_length", "constant_against_radius", "layers_by_length", "heads_by_layer")


def box(report, layer):
    return report.find(f'form#filters fieldset#filter-layers input[type=checkbox][name=layer][value="{layer}"]')


def size(report):
    return {name: (report.marks(name), sum(map(len, report.numbers(name)))) for name in BY_LAYER}


def visible_rows(report):
    return [
        (row.get_attribute("data-map"), int(row.get_attribute("data-layer")))
        for row in report.find("#answer-table tbody tr").all()
        if row.is_visible()
    ]


def test_everything_is_shown_at_first(shown):
    report = shown("two maps")
    assert report.find("fieldset#filter-layers input[name=layer]").count() == len(LAYERS)
    assert all(box(report, layer).is_checked() for layer in LAYERS)
    assert report.find("select#filter-map").input_value() == ""
    assert report.find("input[type=radio][name=scale][value=log]").is_checked()
    assert len(visible_rows(report)) == 2 * len(LAYERS)
    assert all(section.is_visible() for section in report.find("section.measurement").all())


def test_a_layer_that_is_unchecked_leaves_the_table_and_every_chart(open_report):
    report = open_report("small")
    before = size(report)
    assert all(marks > 0 and cells > 0 for marks, cells in before.values()), before
    for layer in LAYERS:
        check_without(report, layer, before)


def check_without(report, layer, before):
    box(report, layer).uncheck()
    report.settle()
    assert visible_rows(report) == [("attention", other) for other in LAYERS if other != layer]
    assert report.find(f'#answer-table tr[data-layer="{layer}"]').get_attribute("hidden") is not None
    for name, (marks, cells) in size(report).items():
        assert 0 < marks < before[name][0], name
        assert 0 < cells < before[name][1], name
    box(report, layer).check()
    report.settle()
    assert len(visible_rows(report)) == len(LAYERS)
    assert size(report) == before


def test_without_any_layer_the_page_still_works(open_report):
    report = open_report("small")
    before = size(report)
    for layer in LAYERS:
        box(report, layer).uncheck()
    report.settle()
    assert visible_rows(report) == []
    for layer in LAYERS:
        box(report, layer).check()
    report.settle()
    assert size(report) == before


def test_choosing_a_map_hides_the_others(open_report):
    report = open_report("two maps")
    chosen = report.find("select#filter-map")
    assert set(chosen.locator("option").evaluate_all("all => all.map(option => option.value)")) == {
        "",
        "attention",
        "residual",
    }
    for part, other in (("residual", "attention"), ("attention", "residual")):
        chosen.select_option(part)
        report.settle()
        assert visible_rows(report) == [(part, layer) for layer in LAYERS]
        assert report.find(f'section.measurement[data-map="{part}"]').is_visible()
        assert not report.find(f'section.measurement[data-map="{other}"]').is_visible()
        for drawing in report.find(f'section.measurement[data-map="{part}"] div.drawing svg').all():
            assert drawing.bounding_box()["width"] > 50
    chosen.select_option("")
    report.settle()
    assert len(visible_rows(report)) == 2 * len(LAYERS)
    assert all(section.is_visible() for section in report.find("section.measurement").all())


def test_filters_by_layer_and_by_map_work_together(open_report):
    report = open_report("two maps")
    box(report, 2).uncheck()
    report.find("select#filter-map").select_option("residual")
    report.settle()
    assert visible_rows(report) == [("residual", 0), ("residual", 5)]
    report.find("select#filter-map").select_option("")
    report.settle()
    assert visible_rows(report).count(("attention", 2)) == 0
    assert len(visible_rows(report)) == 4


def test_the_scale_is_logarithmic_or_linear_at_a_click(open_report):
    report = open_report("small")
    logarithmic = report.labels("constant_against_length")
    assert logarithmic
    report.find("input[name=scale][value=linear]").check()
    report.settle()
    linear = report.labels("constant_against_length")
    assert linear
    assert linear != logarithmic
    report.find("input[name=scale][value=log]").check()
    report.settle()
    assert report.labels("constant_against_length") == logarithmic


def test_every_redraw_has_a_promise_of_its_own(open_report):
    report = open_report("small")
    changes = {
        "layer": box(report, 0).uncheck,
        "scale": report.find("input[name=scale][value=linear]").check,
        "chosen layer": lambda: report.find("select.chosen-layer").select_option(index=2),
    }
    for name, change in changes.items():
        before = report.page.evaluate_handle("() => [window.howsmooth.ready]")
        change()
        assert report.page.evaluate("([before]) => before !== window.howsmooth.ready", before), name
        assert report.page.evaluate("() => window.howsmooth.ready instanceof Promise"), name
        report.settle()


def test_the_ladder_shows_the_chosen_layer(open_report):
    report = open_report("small")
    choice = report.find("section.measurement select.chosen-layer")
    assert choice.locator("option").count() == len(LAYERS)
    seen = []
    for place in range(len(LAYERS)):
        choice.select_option(index=place)
        report.settle()
        seen.append((report.drawing("bounds_ladder"), str(report.numbers("bounds_ladder"))))
    drawings, tables = (set(shown) for shown in zip(*seen, strict=True))
    assert len(drawings) == len(tables) == len(LAYERS)
