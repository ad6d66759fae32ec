"""Elements that Python takes out of tensors, and what looks like it: more of value_read_on_host."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_WRITTEN_TO = """
class Tracker(nn.Module):
    def forward(self, alive: torch.Tensor, x: torch.Tensor):
        for i in range(alive.shape[0] - 1):
            if alive[i] > 0:
                alive[i + 1] = 0
        return x * alive
"""

_COUNTED = """
class Smoothing(nn.Module):
    def forward(self, x: torch.Tensor, target: torch.Tensor):
        padding = target == self.padding_idx
        total = len(target) - padding.sum().item()
        count = total if self.by_length else x.size(0)
        return torch.log_softmax(x, 1).masked_fill(padding.unsqueeze(1), 0).sum() / count
"""

_BORDERS = """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, text_lengths: torch.Tensor):
        x = x[:, : text_lengths.max()]
        return self.encode(x)
"""
_ROOM = """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, classes: torch.Tensor):
        most = torch.max(classes)
        room = x.new_zeros(x.shape[0], most + 1)
        return self.encode(room)
"""
_ROUNDS = """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, classes: torch.Tensor):
        for k in range(classes.max().item() + 1):
            x = x + self.part(x, k)
        return x
"""
"""What the host needs as a border, a size, and a number of rounds: told, not written."""
VALID = (
    # rows are written in as many places, a number is checked and kept, ids were copied before
    """
class Net(nn.Module):
    def forward(self, ids: torch.Tensor, text: torch.Tensor, images: torch.Tensor):
        at = (ids[0] == self.token).nonzero(as_tuple=True)[0]
        text[0, at] = images.to(text.dtype)
        total = int((ids * ids).sum().item())
        self.size = len(ids) - total
        assert self.size > 0
        numbers = ids.to("cpu", torch.int64)
        if int(numbers.max()) >= self.limit:
            text = text.clone()
        return text
""",
    # a list, words, and what another program writes into in each round
    """
class Head(nn.Module):
    def forward(self, scores: torch.Tensor, words, count: torch.Tensor, launch):
        if isinstance(scores, list):
            scores = sum(scores) / float(len(scores))
        tokens = self.tokenizer(words[0].tolist(), padding=True)
        for _ in range(self.rounds):
            launch(scores)
            if int(count[0].item()) > self.most:
                break
        return scores, tokens
""",
    # sizes that the host has, and a check that training has not diverged
    """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, lengths: list, sizes: torch.Tensor):
        n = max(lengths)
        k = torch.arange(n).max()
        if torch.isnan(x.sum()).item():
            raise ValueError(sizes.max().item())
        return x[:, :n, : sizes.cpu().max()], x.new_zeros(x.shape[0] + 1, k), x.argmax(dim=1)
""",
    # a count that others get as well, one that a length depends on
    _COUNTED.replace(
        "        return", "        if not self.training:\n            return count\n        return"
    ),
    _COUNTED.replace("x, 1).masked", "x, 1)[:count].masked"),
    # drawn on the host
    """
def forward(x: torch.Tensor, n, rate):
    drop = torch.zeros(n).uniform_(0.0, 1.0) < rate
    return x if all(drop) else x * drop.sum()
""",
    # differences of numbers of the host, and of others than all neighbours
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, edges: list, rows: torch.Tensor):
        gap = int(max([edges[i + 1] - edges[i] for i in range(len(edges) - 1)]))
        far = max(rows[i + 1] - rows[i] for i in range(len(rows) - 2))
        return x[:gap], torch.relu(x) * far
""",
    # a limit of what may be a number as well, and nothing says when; scores that are kept
    """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, n):
        if self.sync:
            n = x.new_tensor([n])
            n = self.across(n)
        n = max(n, 1)
        self.scores["x"] = x.mean().cpu()
        return self.loss_cls(x, avg_factor=n)
""",
    # rows, and indexes of another tensor, stay on the device
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor):
        out = []
        for i in range(x.shape[0]):
            out.append(x[rows[i]] * rows[i])
        return torch.stack(out)
""",
    # 0.1 of single precision is more than 0.1
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, scores: torch.Tensor):
        for i in range(x.shape[0]):
            if scores[i] > 0.1:
                x = x + i
        return x
""",
    # a sum of floating point in another order, a row that the round changes, and the tensor chosen from
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, scores: torch.Tensor):
        for i in range(x.shape[0]):
            scores[i + 1] = scores[i].max().item() + scores.mean()
            x = x + torch.topk(scores[i], k=3)[0]
        return x
""",
    # lists, arrays, and what is no reduction
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, parts, flags: list, sizes: np.ndarray, count: int):
        if any(part is None for part in parts) or any(flags) or any(sizes > 3):
            return x
        return x[: max(count, 1)] * sum(part.shape[0] for part in parts) + sum([x, x])
""",
    # what another function has made may be a list
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        losses = self.losses(x)
        return sum(losses), max(self.sizes)
""",
)

REWRITTEN = (
    # nobody writes into it: no copy
    Rewritten(
        """
def discriminator_loss(real, fake):
    loss, losses = 0, []
    for r, f in zip(real, fake):
        part = torch.mean((r - f) ** 2)
        loss += 2 * part
        losses.append(part.item())
    return loss, losses
""",
        """
def discriminator_loss(real, fake):
    loss, losses = 0, []
    for r, f in zip(real, fake):
        part = torch.mean((r - f) ** 2)
        loss += 2 * part
        losses.append(part.detach())
    losses = torch.stack(losses).tolist() if losses else []
    return loss, losses
""",
    ),
    # one number of each row, counted in all of them at once
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, masks: torch.Tensor, x: torch.Tensor):
        for k in range(x.shape[0]):
            x = x[: (masks[k] >= 0.5).sum().item()] * 2
        return x
""",
        """
class Head(nn.Module):
    def forward(self, masks: torch.Tensor, x: torch.Tensor):
        masks_sums = (masks >= 0.5).flatten(1).sum(1).tolist()
        for k in range(x.shape[0]):
            x = x[: masks_sums[k]] * 2
        return x
""",
    ),
    # how many are chosen
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, cost: torch.Tensor, ious: torch.Tensor):
        wanted = torch.clamp(ious.sum(1).int(), min=1)
        for row in range(cost.shape[0]):
            _, chosen = torch.topk(cost[row], k=wanted[row], largest=False)
            cost = self.assign(cost, chosen)
        return cost
""",
        """
class Head(nn.Module):
    def forward(self, cost: torch.Tensor, ious: torch.Tensor):
        wanted = torch.clamp(ious.sum(1).int(), min=1)
        wanted_list = wanted.flatten().tolist()
        for row in range(cost.shape[0]):
            _, chosen = torch.topk(cost[row], k=wanted_list[row], largest=False)
            cost = self.assign(cost, chosen)
        return cost
""",
    ),
    # sizes that another method makes a tensor of, multiplied with ratios of the images
    Rewritten(
        """
class Encoder(nn.Module):
    def points(self, shapes, ratios):
        found = []
        for level, (rows, columns) in enumerate(shapes):
            y = torch.linspace(0.5, rows - 0.5, rows, device=ratios.device)
            x = torch.linspace(0.5, columns - 0.5, columns, device=ratios.device)
            found.append((y / (ratios[:, level, 1] * rows), x / (ratios[:, level, 0] * columns)))
        return found

    def forward(self, x: torch.Tensor, ratios, shapes: list):
        shapes = torch.as_tensor(shapes, dtype=torch.long, device=x.device)
        return self.layers(x, self.points(shapes, ratios))
""",
        """
class Encoder(nn.Module):
    def points(self, shapes, ratios):
        found = []
        for level, (rows, columns) in enumerate(shapes.tolist()):
            y = torch.linspace(0.5, rows - 0.5, rows, device=ratios.device)
            x = torch.linspace(0.5, columns - 0.5, columns, device=ratios.device)
            found.append((y / (ratios[:, level, 1] * rows), x / (ratios[:, level, 0] * columns)))
        return found

    def forward(self, x: torch.Tensor, ratios, shapes: list):
        shapes = torch.as_tensor(shapes, dtype=torch.long, device=x.device)
        return self.layers(x, self.points(shapes, ratios))
""",
    ),
    *(Rewritten(text, text) for text in (_BORDERS, _ROOM, _ROUNDS)),
    # a count, with numbers of the host, on one of two ways
    Rewritten(_COUNTED, _COUNTED.replace(".sum().item()", ".sum()")),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        lengths = lengths.view(-1)
        return self.attend(x, any(lengths > 8))
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        lengths = lengths.view(-1)
        return self.attend(x, bool((lengths > 8).any()))
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        if self.packs and not all(lengths > 0):
            x = x * 2
        return x
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        if self.packs and not (lengths > 0).all():
            x = x * 2
        return x
""",
    ),
    Rewritten(
        """
def pad(x: torch.Tensor, lengths: torch.LongTensor) -> torch.Tensor:
    lengths = lengths.view(-1)
    longest = max(lengths)
    return x / longest
""",
        """
def pad(x: torch.Tensor, lengths: torch.LongTensor) -> torch.Tensor:
    lengths = lengths.view(-1)
    longest = lengths.max()
    return x / longest
""",
    ),
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, x, seqlens: torch.Tensor):
        seqlens = seqlens.view(-1)
        longest = max([
            seqlens[i + 1] - seqlens[i]
            for i in range(seqlens.size(0) - 1)
        ]).item()
        return self.attend(x, seqlens, longest)
""",
        """
class Attention(nn.Module):
    def forward(self, x, seqlens: torch.Tensor):
        seqlens = seqlens.view(-1)
        longest = seqlens.diff(dim=0).max().item()
        return self.attend(x, seqlens, longest)
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, n: int):
        n = n * 1.0
        if self.sync:
            n = reduce_mean(torch.full((1,), n, device=x.device))
        n = max(n, 1)
        return self.loss_cls(x, avg_factor=n)
""",
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, n: int):
        n = n * 1.0
        if self.sync:
            n = reduce_mean(torch.full((1,), n, device=x.device))
        n = n.clamp(min=1) if self.sync else max(n, 1)
        return self.loss_cls(x, avg_factor=n)
""",
    ),
    Rewritten(
        """
class Trainer:
    def get_batch_loss_metrics(self, rewards: torch.Tensor, losses: torch.Tensor):
        metrics = {}
        metrics[f"{self.kind}/rewards"] = rewards.mean().cpu()
        return losses.mean(), metrics
""",
        """
class Trainer:
    def get_batch_loss_metrics(self, rewards: torch.Tensor, losses: torch.Tensor):
        metrics = {}
        metrics[f"{self.kind}/rewards"] = rewards.mean().detach()
        return losses.mean(), metrics
""",
    ),
    Rewritten(
        """
def pool(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return sum(x) * scale
""",
        """
def pool(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.sum(0) * scale
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, parts: list):
        sizes = [int((part > 0).sum().item()) for part in parts]
        return self.merge(x, sizes)
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, parts: list):
        sizes = [
            int(n) for n in torch.stack([(part > 0).sum() for part in parts]).tolist()
        ]
        return self.merge(x, sizes)
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, parts: list):
        means = [torch.mean(part).item() for part in parts]
        return x * 2, means
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, parts: list):
        means = torch.stack([torch.mean(part) for part in parts]).tolist()
        return x * 2, means
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, h: torch.Tensor, ends: torch.Tensor):
        ends = ends.view(-1)
        for i in range(x.shape[0]):
            h = self.cell(x[i, : ends[i]], h)
        return h
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, h: torch.Tensor, ends: torch.Tensor):
        ends = ends.view(-1)
        ends_list = ends.tolist()
        for i in range(x.shape[0]):
            h = self.cell(x[i, : ends_list[i]], h)
        return h
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, kinds: torch.Tensor):
        for i in range(kinds.shape[0]):
            if kinds[i] == 0 and self.training:
                x = self.first(x)
            elif kinds[i] == 1:
                x = self.second(x)
        return x
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, kinds: torch.Tensor):
        kinds_list = kinds.flatten().tolist()
        for i in range(kinds.shape[0]):
            if kinds_list[i] == 0 and self.training:
                x = self.first(x)
            elif kinds_list[i] == 1:
                x = self.second(x)
        return x
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, boxes: torch.Tensor):
        masks = torch.zeros_like(x)
        for mask, box in zip(masks, boxes):
            mask[box[0, 1] : box[2, 1] + 1, box[0, 0] : box[1, 0] + 1] = 1.0
            self.record(mask)
        return masks * x
""",
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, boxes: torch.Tensor):
        masks = torch.zeros_like(x)
        for mask, box in zip(masks, boxes.tolist()):
            mask[box[0][1] : box[2][1] + 1, box[0][0] : box[1][0] + 1] = 1.0
            self.record(mask)
        return masks * x
""",
    ),
    Rewritten(
        """
def lengths_of_runs(ids: torch.Tensor) -> list[torch.Tensor]:
    n, runs = 1, []
    for i in range(len(ids) - 1):
        if ids[i] != ids[i + 1]:
            runs.append(n)
            n = 0
        n += 1
    return runs
""",
        """
def lengths_of_runs(ids: torch.Tensor) -> list[torch.Tensor]:
    n, runs = 1, []
    ids_list = ids.flatten().tolist()
    for i in range(len(ids) - 1):
        if ids_list[i] != ids_list[i + 1]:
            runs.append(n)
            n = 0
        n += 1
    return runs
""",
    ),
    # integers that are an index and nothing else
    Rewritten(
        """
def nearest(distances: torch.Tensor, points: torch.Tensor):
    b, n = distances.shape
    at = torch.argmin(distances, dim=-1).tolist()
    return points.view(b, n, 2)[[[i] for i in range(b)], at]
""",
        """
def nearest(distances: torch.Tensor, points: torch.Tensor):
    b, n = distances.shape
    at = torch.argmin(distances, dim=-1)
    return points.view(b, n, 2)[[[i] for i in range(b)], at]
""",
    ),
    # each round may change what the next one reads
    Rewritten(_WRITTEN_TO, _WRITTEN_TO),
)
