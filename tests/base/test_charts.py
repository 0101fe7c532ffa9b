"""Figures in files: SVG with few characters."""

import re

import vl_convert

from redblue.base.charts import small_svg

SPEC = {
    "data": {"values": [{"x": 0.1234567, "y": 2, "name": "1.23456 x"}, {"x": 2.7182818, "y": 3, "name": 'role="x"'}]},
    "layer": [{"mark": "point"}, {"mark": {"type": "text", "opacity": 0.25}, "encoding": {"text": {"field": "name"}}}],
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
}


def texts(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_a_small_svg_has_the_same_marks_and_texts():
    whole, small = vl_convert.vegalite_to_svg(SPEC), small_svg(SPEC)
    assert len(small) < 0.7 * len(whole)
    assert texts(small) == texts(whole)
    assert "1.23456 x" in texts(small)
    for tag in ("<path", "<line", "<text"):
        assert small.count(tag) == whole.count(tag)
    assert 'opacity="0.25"' in small
    assert not re.search(r" (?:aria-label|role|class)=", re.sub(r">[^<]*<", "><", small))


def test_coordinates_move_by_at_most_a_twentieth_of_a_pixel():
    whole, small = ([float(x) for x in re.findall(r"translate\(([-\d.]+),", svg(SPEC))] for svg in (
        vl_convert.vegalite_to_svg, small_svg
    ))  # fmt: skip
    assert any(x != round(x, 1) for x in whole)
    assert all(abs(x - y) <= 0.05 + 1e-9 for x, y in zip(whole, small, strict=True))
    assert all(x == round(x, 1) for x in small)
