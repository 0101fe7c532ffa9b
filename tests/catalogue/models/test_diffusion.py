"""Diffusion: U-Nets, autoencoders and diffusion transformers give their shapes."""

import pytest

from redblue.catalogue.models import model
from redblue.masks import Mask
from support.configs import CONFIGS, GOOD, changed, fields_of, shapes

FULL = Mask.full()

# name, layers, n_q, n_k, heads, kv_heads, d, d_v, mask of each shape
SHAPES = {
    "auraflow": [("joint", 36, 1024, 1024, 12, 12, 256, 256, FULL)],
    "cogvideox": [("joint", 42, 4096, 4096, 48, 48, 64, 64, FULL)],
    "dit": [("self", 28, 256, 256, 16, 16, 72, 72, FULL)],
    "flux": [("joint", 57, 4096, 4096, 24, 24, 128, 128, FULL)],
    "lumina2_groups": [("joint", 26, 4096, 4096, 24, 8, 96, 96, FULL)],
    "pixart": [("self", 28, 4096, 4096, 16, 16, 72, 72, FULL)],
    "qwen_image": [("joint", 60, 4096, 4096, 24, 24, 128, 128, FULL)],
    "sd3": [("joint", 24, 4096, 4096, 24, 24, 64, 64, FULL)],
    "sd35_medium_dual": [
        ("joint", 24, 4096, 4096, 24, 24, 64, 64, FULL),
        ("self, beside joint", 13, 4096, 4096, 24, 24, 64, 64, FULL),
    ],
    "unet_sd15": [
        ("self, level 0", 5, 4096, 4096, 8, 8, 40, 40, FULL),
        ("cross, level 0", 5, 4096, 77, 8, 8, 40, 40, FULL),
        ("self, level 1", 5, 1024, 1024, 8, 8, 80, 80, FULL),
        ("cross, level 1", 5, 1024, 77, 8, 8, 80, 80, FULL),
        ("self, level 2", 5, 256, 256, 8, 8, 160, 160, FULL),
        ("cross, level 2", 5, 256, 77, 8, 8, 160, 160, FULL),
        ("self, level 3", 1, 64, 64, 8, 8, 160, 160, FULL),
        ("cross, level 3", 1, 64, 77, 8, 8, 160, 160, FULL),
    ],
    "unet_sd21": [
        ("self, level 0", 5, 9216, 9216, 5, 5, 64, 64, FULL),
        ("cross, level 0", 5, 9216, 77, 5, 5, 64, 64, FULL),
        ("self, level 1", 5, 2304, 2304, 10, 10, 64, 64, FULL),
        ("cross, level 1", 5, 2304, 77, 10, 10, 64, 64, FULL),
        ("self, level 2", 5, 576, 576, 20, 20, 64, 64, FULL),
        ("cross, level 2", 5, 576, 77, 20, 20, 64, 64, FULL),
        ("self, level 3", 1, 144, 144, 20, 20, 64, 64, FULL),
        ("cross, level 3", 1, 144, 77, 20, 20, 64, 64, FULL),
    ],
    "unet_sdxl": [
        ("self, level 1", 10, 4096, 4096, 10, 10, 64, 64, FULL),
        ("cross, level 1", 10, 4096, 77, 10, 10, 64, 64, FULL),
        ("self, level 2", 60, 1024, 1024, 20, 20, 64, 64, FULL),
        ("cross, level 2", 60, 1024, 77, 20, 20, 64, 64, FULL),
    ],
    "vae": [("mid block", 2, 16384, 16384, 1, 1, 512, 512, FULL)],
    "wan_video": [("self", 40, 4096, 4096, 40, 40, 128, 128, FULL)],
}


def test_every_good_config_has_its_shapes_here():
    assert sorted(SHAPES) == [name for name in GOOD if "_class_name" in fields_of(name)]
    assert len(SHAPES) >= 10


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    assert shapes(model(CONFIGS / f"{name}.json")) == SHAPES[name]


def test_unet_levels_shrink_with_n():
    loaded = model(CONFIGS / "unet_sd15.json", n=1024)
    assert [p.n_q for p in loaded.problems if p.n_k != 77] == [1024, 256, 64, 16]


@pytest.mark.parametrize(
    ("sample_size", "tokens"),
    [(65, [65 * 65, 33 * 33, 17 * 17, 9 * 9]), ([65, 40], [65 * 40, 33 * 20, 17 * 10, 9 * 5])],
)
def test_downsampling_of_a_unet_rounds_each_side_up(tmp_path, sample_size, tokens):
    loaded = model(changed(tmp_path, "unet_sd15", sample_size=sample_size))
    assert [p.n_q for p in loaded.problems if p.n_k != 77] == tokens


def test_the_levels_of_a_given_n_are_exact(tmp_path):
    n = 2**56 + 1  # no float
    for sizes in ({}, {"sample_size": 65}):
        loaded = model(changed(tmp_path, "unet_sd15", **sizes), n=n)
        assert [p.n_q for p in loaded.problems if p.n_k != 77] == [n, 2**54 + 1, 2**52 + 1, 2**50 + 1]


def test_image_tokens_are_latents_over_patches(tmp_path):
    assert model(changed(tmp_path, "sd3", sample_size=64))[0].problem.n_q == 32 * 32
    assert model(changed(tmp_path, "dit", patch_size=4))[0].problem.n_q == 8 * 8
