"""Numbers that each round of a loop reads, and what looks like it: more of value_read_on_host."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_CENTERS = """
class CenterHead(nn.Module):
    def loss(self, heatmaps, preds):
        losses = {}
        for task, pred in enumerate(preds):
            num_pos = heatmaps[task].eq(1).float().sum().item()
            losses[f"heatmap_{task}"] = self.loss_cls(
                pred, heatmaps[task], avg_factor=max(num_pos, 1)
            )
        return losses
"""

_PADDED = """
class TargetAssigner(nn.Module):
    def assign_targets(self, gt_boxes: torch.Tensor):
        kept = []
        for k in range(gt_boxes.shape[0]):
            boxes = gt_boxes[k]
            last = len(boxes) - 1
            while last > 0 and boxes[last].sum() == 0:
                last -= 1
            kept.append(boxes[: last + 1])
        return kept
"""

VALID = (
    # it is used before it is a number
    """
class Search(nn.Module):
    def forward(self, logits: torch.Tensor, scores: list):
        places = logits.argmax(dim=1)
        found = []
        for place in places:
            found.append(place)
            place = place.item()
            found.append((place, scores[place]))
        return found
""",
    # the round does more with the row, no row is added up, another one is asked for
    """
class TargetAssigner(nn.Module):
    def assign_targets(self, x: torch.Tensor, k: int):
        n = len(x) - 1
        while n > 0 and x[n].sum() == 0:
            x[n] = 1
            n -= 1
        while n > 0 and x[n].sum(0, keepdim=True).shape[0] == 0:
            n -= 1
        while n > 0 and x[k].sum() == 0:
            n -= 1
        return x[:n]
""",
    # an array of NumPy, and lists
    """
class TargetAssigner(nn.Module):
    def assign_targets(self, x, sizes):
        boxes = np.asarray(x)
        n = len(boxes) - 1
        while n > 0 and boxes[n].sum() == 0:
            n -= 1
        while n > 0 and sizes[n] == 0:
            n -= 1
        return boxes[:n]
""",
)
REWRITTEN = (
    Rewritten(
        _CENTERS,
        _CENTERS.replace(".float().sum().item()", ".float().sum().detach()").replace(
            "max(num_pos, 1)", "num_pos.clamp(min=1)"
        ),
    ),
    Rewritten(
        _PADDED,
        _PADDED.replace(
            "            while",
            "            boxes_sums = boxes.flatten(1).sum(1).tolist()\n            while",
        ).replace("boxes[last].sum()", "boxes_sums[last]"),
    ),
    # each round begins with the number of an element
    Rewritten(
        """
class Search(nn.Module):
    def forward(self, logits: torch.Tensor, scores: list):
        places = logits.argmax(dim=1)
        found = []
        for place in places:
            place = place.item()
            found.append((place, scores[place]))
        return found
""",
        """
class Search(nn.Module):
    def forward(self, logits: torch.Tensor, scores: list):
        places = logits.argmax(dim=1)
        found = []
        for place in places.tolist():
            found.append((place, scores[place]))
        return found
""",
    ),
    Rewritten(
        """
class Search(nn.Module):
    def forward(self, logits: torch.Tensor):
        best, places = logits.topk(3, dim=-1)
        return best, [row.tolist() for row in places]
""",
        """
class Search(nn.Module):
    def forward(self, logits: torch.Tensor):
        best, places = logits.topk(3, dim=-1)
        return best, places.tolist()
""",
    ),
    # what ``if`` of a comprehension asks
    Rewritten(
        """
class Filter(nn.Module):
    def forward(self, logits: torch.Tensor, n: int):
        best = torch.argmax(logits, dim=2)
        kept = []
        for row in range(n):
            kept.append([i for i in range(n) if best[row][i] != 0])
        return kept
""",
        """
class Filter(nn.Module):
    def forward(self, logits: torch.Tensor, n: int):
        best = torch.argmax(logits, dim=2)
        kept = []
        best_list = best.tolist()
        for row in range(n):
            kept.append([i for i in range(n) if best_list[row][i] != 0])
        return kept
""",
    ),
    # sizes that are limits, and where the next level begins
    Rewritten(
        """
class Kernel(nn.Module):
    def forward(self, shapes: torch.Tensor, at: torch.Tensor):
        start, found = 0, torch.zeros_like(at[..., 0])
        for level, (h, w) in enumerate(shapes):
            at[:, level, 0].clamp_(min=0, max=w - 1)
            found[:, level] = start + at[:, level, 0] + at[:, level, 1] * w
            start += h * w
        return found
""",
        """
class Kernel(nn.Module):
    def forward(self, shapes: torch.Tensor, at: torch.Tensor):
        start, found = 0, torch.zeros_like(at[..., 0])
        for level, (h, w) in enumerate(shapes.tolist()):
            at[:, level, 0].clamp_(min=0, max=w - 1)
            found[:, level] = start + at[:, level, 0] + at[:, level, 1] * w
            start += h * w
        return found
""",
    ),
)
