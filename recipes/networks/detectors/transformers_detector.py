"""Detectors of transformers: DETR and its relatives, YOLOS, RT-DETR.

Images are stretched to squares, the input of RT-DETR, and normalised and decoded as by the model's image processor. The
loss is the model's own, without the parts that its forward computes from labels alone: denoising queries (RT-DETR), and
the losses of earlier decoder layers if the output lacks those layers (DETR).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from prunerecover.recipes.networks.detectors.detector import Prepared, SquareDetector, Target, fitted, relative_centres

LAYERS = ("intermediate_logits", "intermediate_reference_points", "enc_topk_logits", "enc_topk_bboxes")


class TransformersDetector(SquareDetector):
    """Model of `AutoModelForObjectDetection`.

    Args:
        model: Detector of transformers.
        image_size: Height and width of the network's input, in pixels.
        processor: Image processor of the model.
    """

    def __init__(self, model: nn.Module, image_size: int, processor: Any) -> None:
        super().__init__(model, image_size)
        self.processor, self.classes = processor, int(self.model.config.num_labels)

    def prepare(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> Prepared:
        """Stretch to squares, and normalise if the processor normalises."""
        from torchvision.transforms.v2.functional import normalize

        batch = fitted(images, targets, self.image_size, keep_shape=False)
        if not self.processor.do_normalize:
            return batch
        pixels = normalize(batch.pixels, list(self.processor.image_mean), list(self.processor.image_std))
        return Prepared(pixels, batch.sizes, batch.original, batch.targets)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return `logits` and `pred_boxes` (centres and sizes as shares of the image); more in training."""
        output = self.model(pixel_values=pixels)
        more = LAYERS if self.training else ()
        return {name: output[name] for name in ("logits", "pred_boxes", *more) if output.get(name) is not None}

    def losses(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Tensor]:
        """Return the model's loss, summed over all decoder layers in the output."""
        assert batch.targets is not None, "losses are of batches with targets"
        labels = [
            {"class_labels": target["labels"], "boxes": relative_centres(target["boxes"], size)}
            for target, size in zip(batch.targets, batch.sizes, strict=True)
        ]
        config = copy.copy(self.model.config)
        config.auxiliary_loss = config.auxiliary_loss and all(name in output for name in LAYERS)
        classes, boxes, *encoder = (output.get(name) for name in LAYERS)
        more = dict(zip(LAYERS[2:], encoder, strict=True))
        logits, device = output["logits"], output["logits"].device
        loss, *_ = self.model.loss_function(
            logits, labels, device, output["pred_boxes"], config, classes, boxes, **more
        )
        return {"loss": loss}

    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        """Return the detections of the processor, without a threshold."""
        found: list[dict[str, Tensor]] = self.processor.post_process_object_detection(
            SimpleNamespace(**output), threshold=0.0, target_sizes=list(batch.original)
        )
        return found


def processor_of(model: Any, name: str | None = None) -> Any:
    """Return the image processor of a model.

    Args:
        model: Detector of transformers.
        name: Folder or hub id with a processor's configuration; None: the defaults of the model's family.
    """
    from transformers import AutoImageProcessor
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    if name is not None:
        try:
            return AutoImageProcessor.from_pretrained(name)
        except (OSError, ValueError):  # weights without a processor
            pass
    known = IMAGE_PROCESSOR_MAPPING[type(model.config)]
    classes = known.values() if isinstance(known, dict) else known
    return [cls for cls in classes if cls is not None][-1]()
