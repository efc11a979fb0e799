"""Networks of timm: a small one of nearly every family, on small images where the family allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from torch import nn

from benchmarks.zoo.networks.network import CLASSES, Network, images

# The side of the images that networks take of any size.
CONVOLUTIONAL = {
    "resnet10t": 64,
    "resnet26d": 64,
    "seresnet18": 64,
    "ecaresnet26t": 64,
    "resnetv2_18d": 64,
    "resnetv2_50": 64,
    "legacy_seresnet18": 64,
    "skresnet18": 64,
    "resnest14d": 64,
    "res2net50_14w_8s": 64,
    "regnetx_002": 64,
    "regnety_002": 64,
    "regnetz_005": 64,
    "densenetblur121d": 64,
    "dla34": 64,
    "dla46x_c": 64,
    "dpn48b": 64,
    "cspresnet50": 64,
    "cs3darknet_focus_s": 64,
    "vovnet39a": 64,
    "ese_vovnet19b_dw": 64,
    "hrnet_w18_small": 64,
    "selecsls42b": 64,
    "xception41": 64,
    "inception_v3": 96,
    "inception_v4": 96,
    "efficientnet_lite0": 64,
    "efficientnet_b0_gn": 64,
    "tf_efficientnetv2_b0": 64,
    "mobilenetv2_050": 64,
    "mobilenetv3_small_050": 64,
    "lcnet_050": 64,
    "tinynet_e": 64,
    "fbnetc_100": 64,
    "hardcorenas_a": 64,
    "mnasnet_small": 64,
    "mixnet_s": 64,
    "spnasnet_100": 64,
    "semnasnet_075": 64,
    "mobilenetv4_conv_small": 64,
    "mobileone_s0": 64,
    "gernet_s": 64,
    "gcresnext26ts": 64,
    "ghostnet_050": 64,
    "ghostnetv2_100": 64,
    "rexnet_100": 64,
    "repvit_m0_9": 64,
    "repghostnet_050": 64,
    "starnet_s050": 64,
    "fasternet_t0": 64,
    "hgnetv2_b0": 64,
    "convnext_atto": 64,
    "convnextv2_atto": 64,
    "inception_next_atto": 64,
    "rdnet_tiny": 64,
    "mambaout_femto": 64,
    "nf_regnet_b0": 64,
    "eca_nfnet_l0": 64,
    "fastvit_t8": 64,
    "edgenext_xx_small": 64,
    "mobilevit_xxs": 64,
    "mobilevitv2_050": 64,
    "efficientvit_b0": 64,
    "poolformer_s12": 64,
    "convformer_s18": 64,
    "caformer_s18": 64,
    "focalnet_tiny_srf": 64,
    "pvt_v2_b0": 64,
    "davit_tiny": 64,
    "swiftformer_xs": 64,
    "convmixer_768_32": 32,
    "sequencer2d_s": 64,
    "shvit_s1": 64,
    "efficientformer_l1": 224,
    "efficientvit_m0": 224,
    "visformer_tiny": 224,
    "botnet26t_256": 256,
}
# Arguments of timm's transformers for small images.
SMALL = {"img_size": 64}
SHALLOW = {"img_size": 64, "patch_size": 8, "depth": 4}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": SHALLOW,
    "deit_tiny_distilled_patch16_224": SHALLOW,
    "deit3_small_patch16_224": SHALLOW,
    "beit_base_patch16_224": {**SHALLOW, "embed_dim": 192, "num_heads": 3},
    "eva02_tiny_patch14_224": SHALLOW,
    "vit_relpos_small_patch16_224": {**SHALLOW, "embed_dim": 192, "num_heads": 3},
    "vit_base_patch16_siglip_gap_224": {**SHALLOW, "embed_dim": 192, "num_heads": 3},
    "flexivit_small": SHALLOW,
    "cait_xxs24_224": SHALLOW,
    "convit_tiny": SHALLOW,
    "xcit_nano_12_p16_224": SMALL,
    "mixer_s32_224": SMALL,
    "gmlp_ti16_224": SMALL,
    "resmlp_12_224": SMALL,
    "pit_ti_224": SMALL,
    "tnt_s_patch16_224": {"img_size": 64, "depth": 4},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4},
    "swinv2_tiny_window8_256": {"img_size": 64, "window_size": 4},
    "swinv2_cr_tiny_224": {"img_size": 64, "window_size": 2},
    "coat_lite_tiny": SMALL,
    "crossvit_tiny_240": {},
    "levit_128s": SMALL,
    "mvitv2_tiny": SMALL,
    "nest_tiny": SMALL,
    "twins_svt_small": SMALL,
    "volo_d1_224": SMALL,
    "tiny_vit_5m_224": {},
    "gcvit_xxtiny": SMALL,
    "hiera_tiny_224": {"img_size": (64, 64)},
    "coatnet_nano_rw_224": SMALL,
    "maxvit_pico_rw_256": SMALL,
    "efficientformerv2_s0": SMALL,
    "naflexvit_base_patch16_gap": {"embed_dim": 192, "num_heads": 3, "depth": 4},
}
SIDES = {"crossvit_tiny_240": 240, "tiny_vit_5m_224": 224}


def networks() -> list[Network]:
    """Return the suite."""
    convolutional = [Network(name, _model(name), images(side)) for name, side in CONVOLUTIONAL.items()]
    transformers = [
        Network(name, _model(name, **kwargs), images(SIDES.get(name, 64))) for name, kwargs in TRANSFORMERS.items()
    ]
    return [*convolutional, *transformers]


def _model(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return partial(timm.create_model, name, pretrained=False, num_classes=CLASSES, **kwargs)
