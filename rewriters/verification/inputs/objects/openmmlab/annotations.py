"""What detectors are to find, and what is known of images: arguments of the shapes that code reads.

``targets`` of DETR are a list of dictionaries, ``batch_gt_instances`` of mmdet one of
``InstanceData``; ``batch_img_metas`` says how large the images are. A counterexample makes them
again by the functions of this file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import (
    Spec,
    Value,
    make_again,
    seed_generator,
)
from npufix.rewriters.verification.inputs.objects.openmmlab.elements import (
    BaseDataElement,
    InstanceData,
    PixelData,
)

if TYPE_CHECKING:
    from npufix.rewriters.verification.inputs.source.parameters import Parameter
    from npufix.rewriters.verification.inputs.source.usage import Use

DETECTED = r"^(targets|indices)$"
_FOUND = r"target|annotation|^gts?(_|$)|truth|instances"
_TARGETS = r"(?i)(list|sequence)\[dict\[str,Tensor\]\]"
_PAIRS = r"(?i)(list|sequence)\[tuple\[Tensor,Tensor\]\]"
_COUNTS = (3, 2), (0, 2)
"""Objects in two images."""
_MATCHES: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
_MATCHES = (((2, 0), (0, 2)), ((1,), (1,))), (((), ()), ((0, 2), (1, 0)))
"""Predictions, of three at least, that are matched with them."""
_INSTANCES = r"(?i)(?P<absent>Opt(?:ional\[)?)?(?P<listed>(?:list|sequence)\[)?InstanceData\]*"
_LISTS = r"(?P<absent>Opt(?:ional\[)?)?(?P<kind>Instance|Sample)List\]?"
_SAMPLES = r"(?i)(?P<absent>Optional\[)?(?P<listed>(?:list|sequence)\[)?'?\w*DataSample'?\]*"
_METAS = r"(^|_)img_metas?$|(^|_)metainfos?$"
_OF_METAS = r"(?i)(list|sequence)\[dict.*\]|dict|"
_PREDICTED = r"pred"
_MORE = 2
"""Predictions beside as many as there are objects."""
_SIZE = (24, 32)
"""Of images whose boxes are in pixels."""


def make_targets(*counts: int) -> list[dict[str, torch.Tensor]]:
    """Return what a detector is to find in each image: so many objects, with labels and boxes.

    The boxes are such by corners and by centres with sizes.
    """
    made = []
    for image, count in enumerate(counts):
        sides = _draw_sides(image, count)
        whole = torch.arange(count)
        one = {"labels": (whole + image) % 2, "boxes": sides, "area": sides[:, 2] * sides[:, 3]}
        one |= {"iscrowd": whole * 0, "image_id": torch.tensor([image])}
        made.append(one | {"size": torch.tensor([24, 32]), "orig_size": torch.tensor([48, 64])})
    return made


def _draw_sides(image: int, count: int) -> torch.Tensor:
    drawn = torch.rand(count, 4, generator=seed_generator("targets", image)) * 0.25
    return drawn + torch.tensor([0.125, 0.25, 0.5, 0.625])


def make_matches(*matches: tuple[tuple[int, ...], ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return for each image which predictions are matched with which objects."""
    return [(torch.tensor(a).long(), torch.tensor(b).long()) for a, b in matches]


def make_instances(image: int, count: int, *, predicted: bool = False) -> InstanceData:
    """Return the objects of an image: boxes in pixels, labels, masks; scores and priors as well."""
    height, width = _SIZE
    boxes = _draw_sides(image + _MORE * predicted, count) * torch.tensor([width, height] * 2)
    whole = torch.arange(count)
    made = InstanceData(metainfo=make_meta(image), bboxes=boxes, labels=(whole + image) % 2)
    if predicted:
        made.set_field(boxes + 0.5, "priors")
        made.set_field(boxes.flip(1).sin().sigmoid()[:, :2], "scores")
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    left, top, right, bottom = boxes[:, :, None, None].unbind(1)
    inside = (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
    made.set_field(inside.float() if predicted else inside.long(), "masks")
    return made


def make_meta(image: int) -> dict[str, object]:
    """Return what is known of an image: how large it is, was, and is with those of its batch."""
    height, width = _SIZE
    own = (height - 2 * image, width - image)
    return {
        "img_shape": own,
        "ori_shape": (height * 2, width * 2),
        "pad_shape": _SIZE,
        "batch_input_shape": _SIZE,
        "scale_factor": (0.5, 0.25),
        "flip": False,
        "img_id": image,
    }


def make_all_instances(*counts: int, predicted: bool = False) -> list[InstanceData]:
    """Return the objects of several images."""
    return [make_instances(n, count, predicted=predicted) for n, count in enumerate(counts)]


def make_metas(*images: int) -> list[dict[str, object]]:
    """Return what is known of several images."""
    return [make_meta(image) for image in images]


def make_sample(image: int, count: int) -> BaseDataElement:
    """Return all that is annotated of an image: objects, a class of each pixel and of the whole."""
    drawn = torch.randint(0, 2, (1, *_SIZE), generator=seed_generator("pixels", image))
    label = torch.tensor([image % 2])
    made = BaseDataElement(metainfo=make_meta(image), gt_instances=make_instances(image, count))
    made.set_field(make_instances(image, count + 1, predicted=True), "pred_instances")
    made.set_field(PixelData(data=drawn), "gt_sem_seg")
    made.set_field(InstanceData(bboxes=torch.zeros(0, 4)), "ignored_instances")
    made.set_field(label, "gt_label")
    made.set_field(torch.nn.functional.one_hot(label[0], 2).float(), "gt_score")
    return made


def make_samples(*counts: int) -> list[BaseDataElement]:
    """Return all that is annotated of several images."""
    return [make_sample(image, count) for image, count in enumerate(counts)]


def offer_detections(parameter: Parameter, use: Use) -> list[Spec]:
    """Offer targets of two images, or matches with them, for an argument that is a list of such.

    And what OpenMMLab's packages have for them.
    """
    name, annotation = parameter.name, re.sub(r"typing\.|torch\.| ", "", parameter.annotation)
    unsaid = not annotation and not parameter.has_default and use.looped
    told = re.fullmatch(_TARGETS, annotation) and re.search(_FOUND, name)
    if told or (unsaid and name == "targets"):
        both = zip(("targets of two images", "targets of one image of two"), _COUNTS, strict=True)
        return [make_again(make_targets, label, *counts) for label, counts in both]
    if re.fullmatch(_PAIRS, annotation) or (unsaid and name == "indices"):
        labels = "matches in two images", "matches in one image of two"
        every = zip(labels, _MATCHES, strict=True)
        return [make_again(make_matches, label, *matches) for label, matches in every]
    return _offer_elements(parameter, annotation)


def _offer_elements(parameter: Parameter, annotation: str) -> list[Spec]:
    absent: list[Spec] = [Value(parameter.default, given=False)] * parameter.has_default
    if found := re.fullmatch(_INSTANCES, annotation):
        return absent + _offer_instances(parameter.name, listed=found["listed"] is not None)
    if found := re.fullmatch(_LISTS, annotation):
        if found["kind"] == "Instance":
            return absent + _offer_instances(parameter.name, listed=True)
        return absent + _offer_samples(listed=True)
    if found := re.fullmatch(_SAMPLES, annotation):
        return absent + _offer_samples(listed=found["listed"] is not None)
    if re.search(_METAS, parameter.name) and re.fullmatch(_OF_METAS, annotation):
        several = "[" in annotation or parameter.name.endswith("s")
        one = make_again(make_meta, "what is known of an image", 0)
        every = make_again(make_metas, "what is known of two images", 0, 1)
        return [*absent, every if several else one]
    return []


def _offer_instances(name: str, *, listed: bool) -> list[Spec]:
    predicted = re.search(_PREDICTED, name) is not None
    what, more = ("predictions", _MORE) if predicted else ("objects", 0)
    if not listed:
        counts = [_COUNTS[0][0], *[0] * (not predicted)]
        return [
            make_again(make_instances, f"{n + more} {what}", 0, n + more, predicted=predicted)
            for n in counts
        ]
    return [
        make_again(
            make_all_instances,
            f"{what} of {images}",
            *(n + more for n in counts),
            predicted=predicted,
        )
        for counts, images in zip(_COUNTS, ("two images", "one image of two"), strict=True)
    ]


def _offer_samples(*, listed: bool) -> list[Spec]:
    if not listed:
        return [make_again(make_sample, "the annotations of an image", 0, 3)]
    both = zip(("the annotations of two images", "those of one image of two"), _COUNTS, strict=True)
    return [make_again(make_samples, label, *counts) for label, counts in both]
