"""Code that the host waits in, and that it does not: the examples of value_read_on_host."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_LOGGED_AT_ONCE = """
class Head(nn.Module):
    def training_step(self, pred: torch.Tensor, gt: torch.Tensor):
        stats = {"epoch": self.epoch}
        stats["pred"] = pred.mean().item()
        self.logger.log(stats)
        return (pred - gt).abs().mean()
"""
_LONGEST = """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor):
        longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max().item())
        return self.attend(x, cu_seqlens, longest)
"""

_BUILDER = """
class AttentionMetadataBuilder:
    def build(self, common, positions: torch.Tensor):
        query_lens = common.query_start_loc[1:] - common.query_start_loc[:-1]
        longest = max(1, int(query_lens.max().item()))
        return self.make(query_lens, longest, torch.relu(positions))
"""
_PACKED = """
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, packed):
        ends = tuple(packed.cu_seqlens_q[1:].cpu().numpy().tolist())
        return self.attend(q, ends)
"""

_ROUND_TRIP = """
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        return self.convolve(self.dropout(x.cpu()).npu())
"""
_RAN_IN_MAIN = """
def main(model, batches, optimizer):
    total = 0
    for batch in batches:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        total += loss.item()
        print(total)
    return total
"""

_SAMPLED = """
class Pipeline:
    def __call__(self, x: torch.Tensor, timesteps: torch.Tensor, limit: float):
        for t in timesteps:
            now = ((1000 - t.expand(x.shape[0])) / 1000)[0].item()
            noise = self.transformer(x, t, guided=now < limit)
            x = self.scheduler.step(noise, t, x)
        return x
"""
_LOOKED_AT = """
def train_step(model, batches, optimizer):
    losses = []
    for batch in batches:
        loss = model(batch)
        loss.backward()
        losses.append(loss.item())
        if sum(losses[-3:]) < 1:
            break
    return losses
"""

VALID = (
    # as often as a number says, or a list of the host
    """
def spread(x: torch.Tensor, n: int, lengths: list) -> torch.Tensor:
    rows = x.repeat_interleave(torch.tensor(lengths), dim=0)
    return x.repeat_interleave(n, dim=0), rows, x.repeat_interleave(rows.shape[0], output_size=8)
""",
    # rows of indexes, and masks
    """
class Head(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor):
        return [x[row] for row in rows], [x[mask].sum() for mask in masks]
""",
    # what the message of an error says, and lengths that the object has filled itself
    """
class Cache(nn.Module):
    def forward(self, x: torch.Tensor, seq_lens: torch.Tensor):
        if x.shape[0] > self.size:
            longest = seq_lens.max().item()
            raise ValueError(f"{longest} is too long")
        return self.attend(x, self.seq_lens.tolist())
""",
    # once, before the first request
    """
class AttentionMetadataBuilder:
    def build_for_capture(self, seq_lens: torch.Tensor):
        return self.make(seq_lens, seq_lens.max().item())
""",
    # the length of a tensor
    """
def loss(x: torch.Tensor):
    return x.sum() / max(x.shape[0], 1)
""",
    # the host decides by it
    """
def forward(x: torch.Tensor, places: torch.Tensor):
    last = int(places.max().item())
    return x[:, :last]
""",
    # what all ranks have of something that may be a number
    """
def loss(x: torch.Tensor, count):
    return x.sum() / max(reduce_mean(count), 1.0)
""",
    # runs once
    """
class Decoder(nn.Module):
    def __init__(self, depth: int):
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 0.1, depth)]
""",
    # made here, and no length
    """
class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, order: torch.Tensor):
        places = (x > 0).sum(-1)
        return self.write(places.cpu(), self.rank(order.cpu()))
""",
    # an array
    """
def loss(x: torch.Tensor, boxes):
    return x * np.prod(boxes, axis=1).max().item()
""",
    # a number makes the shape
    """
def loss(x: torch.Tensor, labels: torch.Tensor):
    num_pos = max(1, (labels > 0).sum().item())
    return x[: 3 * num_pos].sum()
""",
    # made on the host
    """
def train_step(model, data):
    return {"loss": torch.Tensor([0]).item(), "order": torch.arange(len(data)).tolist()}
""",
    # elements of what is made on the host, or handed in from there
    """
class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, steps: int):
        times = torch.linspace(1, 0, steps)
        x = x * times[0].item()
        for i, (now, then) in enumerate(zip(times[:-1], times[1:])):
            x = x * (now.item() - then.item())
        rates = [t.item() for t in torch.linspace(0, 0.1, self.depth)]
        return self.scale(x, times.cpu()), rates

    def scale(self, x: torch.Tensor, times):
        for i in range(3):
            x = x * times[i].item()
        return x
""",
    # its elements are computed with, on the device
    """
def forward(x: torch.Tensor, scales: torch.Tensor):
    for low, high in scales:
        x = x.clamp(low, high) * high
    return x
""",
    # what comes out of its elements is kept, and returned
    """
def forward(x: torch.Tensor, grid: torch.Tensor):
    start = 0
    for h, w in grid:
        rows = h // 2
        x = x + torch.arange(rows * w, device=x.device).sum()
        start += rows
    return x, start
""",
    # tuples of a list
    """
def forward(x: torch.Tensor, shapes: list):
    for h, w in shapes:
        x = x + torch.zeros(h, w, device=x.device).sum()
    return x
""",
    # what each round reads, the one before may have written
    """
def forward(x: torch.Tensor, steps: torch.Tensor):
    for i in range(3):
        steps[i + 1] += 1
        if int(steps[i]) > 2:
            x = x + 1
    return x
""",
    # nobody waits for it
    """
@torch.no_grad()
def evaluate(model, loader):
    return sum(model(x).sum().item() for x in loader)
""",
)
REWRITTEN = (
    Rewritten(
        """
class Head(nn.Module):
    def get_loss(self, pred: torch.Tensor, gt: torch.Tensor):
        loss = (pred - gt).abs().mean()
        tb_dict = {}
        tb_dict["loss"] = loss.detach().cpu().item()
        loss += pred.square().mean()
        return loss, tb_dict
""",
        """
class Head(nn.Module):
    def get_loss(self, pred: torch.Tensor, gt: torch.Tensor):
        loss = (pred - gt).abs().mean()
        tb_dict = {}
        tb_dict["loss"] = loss.detach().clone()
        loss += pred.square().mean()
        return loss, tb_dict
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def get_part_loss(self, loss: torch.Tensor, labels: torch.Tensor):
        num_pos = max(1, (labels > 0).sum().item())
        return loss.sum() / (3 * num_pos)
""",
        """
class Head(nn.Module):
    def get_part_loss(self, loss: torch.Tensor, labels: torch.Tensor):
        num_pos = (labels > 0).sum().clamp(min=1)
        return loss.sum() / (3 * num_pos)
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, found: list):
        num_pos = x.new_full((), len(found))
        num_pos = max(reduce_mean(num_pos), 1.0)
        return x.sum() / num_pos + self.loss_cls(x) / num_pos
""",
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, found: list):
        num_pos = x.new_full((), len(found))
        num_pos = reduce_mean(num_pos).clamp(min=1.0)
        return x.sum() / num_pos + self.loss_cls(x) / num_pos
""",
    ),
    Rewritten(_LONGEST, _LONGEST),
    Rewritten(_BUILDER, _BUILDER),
    Rewritten(_PACKED, _PACKED),
    Rewritten(_ROUND_TRIP, _ROUND_TRIP),
    Rewritten(_RAN_IN_MAIN, _RAN_IN_MAIN),
    # logged at once
    Rewritten(_LOGGED_AT_ONCE, _LOGGED_AT_ONCE),
    Rewritten(
        """
def focal_loss(loss: torch.Tensor, labels: torch.Tensor):
    return loss / max(1.0, (labels > 0).sum())
""",
        """
def focal_loss(loss: torch.Tensor, labels: torch.Tensor):
    return loss / (labels > 0).sum().clamp(min=1)
""",
    ),
    Rewritten(
        """
class Loss(nn.Module):
    def forward(self, loss: torch.Tensor, weight):
        return loss.sum() / max(weight.sum(), 1.0)
""",
        """
class Loss(nn.Module):
    def forward(self, loss: torch.Tensor, weight):
        return loss.sum() / weight.sum().clamp(min=1.0)
""",
    ),
    Rewritten(
        """
def giou_loss(loss: torch.Tensor, weight: torch.Tensor):
    norm = max(weight.sum().item(), 1.0)
    return loss.sum() / norm
""",
        """
def giou_loss(loss: torch.Tensor, weight: torch.Tensor):
    norm = weight.sum().detach().clamp(min=1.0)
    return loss.sum() / norm
""",
    ),
    Rewritten(
        """
class Criterion(nn.Module):
    def loss_boxes(self, loss: torch.Tensor, num_boxes: torch.Tensor):
        num_boxes = torch.clamp(num_boxes, min=1).item()
        return loss.sum() / num_boxes
""",
        """
class Criterion(nn.Module):
    def loss_boxes(self, loss: torch.Tensor, num_boxes: torch.Tensor):
        num_boxes = torch.clamp(num_boxes, min=1).detach().reshape(())
        return loss.sum() / num_boxes
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, labels: torch.Tensor):
        num_pos = (labels >= 0).sum().item()
        num_pos = max(num_pos, 1.0)
        return x.sum() / num_pos
""",
        """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, labels: torch.Tensor):
        num_pos = (labels >= 0).sum()
        num_pos = num_pos.clamp(min=1)
        return x.sum() / num_pos
""",
    ),
    Rewritten(
        """
class Recogniser(nn.Module):
    def forward(self, x: torch.Tensor, x_lens: torch.Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(x, x_lens.cpu(), batch_first=True)
        return self.rnn(packed)[0]
""",
        """
class Recogniser(nn.Module):
    def forward(self, x: torch.Tensor, x_lens: torch.Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(x, x_lens.cpu(), batch_first=True)
        return self.rnn(packed)[0]
""",
    ),
    Rewritten(
        """
class Experts(nn.Module):
    def forward(self, x: torch.Tensor, group_list: torch.Tensor):
        return self.grouped_matmul(x, group_list.tolist())
""",
        """
class Experts(nn.Module):
    def forward(self, x: torch.Tensor, group_list: torch.Tensor):
        return self.grouped_matmul(x, group_list)
""",
    ),
    Rewritten(
        """
def forward(x: torch.Tensor, borders: torch.Tensor):
    parts = []
    for i in range(len(borders) - 1):
        start = borders[i].item()
        parts.append(x[start : borders[i + 1].item()])
    return parts
""",
        """
def forward(x: torch.Tensor, borders: torch.Tensor):
    parts = []
    borders_list = borders.tolist()
    for i in range(len(borders) - 1):
        start = borders_list[i]
        parts.append(x[start : borders_list[i + 1]])
    return parts
""",
    ),
    Rewritten(
        """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor, grid_thw: torch.Tensor):
        start = 0
        for t, h, w in grid_thw:
            rows, columns = h // self.merge, w // self.merge
            places = torch.arange(rows * columns, device=x.device)
            if t > 1:
                places = places.repeat(t)
            x[start : start + t * rows * columns] += places
            start += t * rows * columns
        return x
""",
        """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor, grid_thw: torch.Tensor):
        start = 0
        for t, h, w in grid_thw.tolist():
            rows, columns = h // self.merge, w // self.merge
            places = torch.arange(rows * columns, device=x.device)
            if t > 1:
                places = places.repeat(t)
            x[start : start + t * rows * columns] += places
            start += t * rows * columns
        return x
""",
    ),
    Rewritten(
        """
def train_step(model, batches, optimizer):
    total = 0.0
    for batch in batches:
        loss = model(batch)
        loss.backward()
        total += loss.item() * len(batch)
    return total
""",
        """
def train_step(model, batches, optimizer):
    total = 0.0
    for batch in batches:
        loss = model(batch)
        loss.backward()
        total += loss.detach().float() * len(batch)
    total = float(total)
    return total
""",
    ),
    Rewritten(
        """
def train_step(model, batches, optimizer):
    losses = []
    for batch in batches:
        loss = model(batch)
        loss.backward()
        losses.append(loss.item())
    return losses
""",
        """
def train_step(model, batches, optimizer):
    losses = []
    for batch in batches:
        loss = model(batch)
        loss.backward()
        losses.append(loss.detach().clone())
    losses = torch.stack(losses).flatten().tolist() if losses else []
    return losses
""",
    ),
    Rewritten(
        """
def train_step(model, batches, optimizer):
    hits = 0
    for batch in batches:
        loss = model(batch)
        loss.backward()
        hits += (batch > 0).sum().item()
    return hits
""",
        """
def train_step(model, batches, optimizer):
    hits = 0
    for batch in batches:
        loss = model(batch)
        loss.backward()
        hits += (batch > 0).sum().detach()
    hits = int(hits)
    return hits
""",
    ),
    Rewritten(
        """
def segment_softmax(x: torch.Tensor, ends: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    largest = largest.repeat_interleave(ends[1:] - ends[:-1], dim=0)
    return (x - largest).exp()
""",
        """
def segment_softmax(x: torch.Tensor, ends: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    largest = largest.repeat_interleave(ends[1:] - ends[:-1], dim=0, output_size=x.shape[0])
    return (x - largest).exp()
""",
    ),
    # a scheduler and a network in each round, and what each is asked for before
    Rewritten(_SAMPLED, _SAMPLED),
    # someone looks in each round, or the sum began elsewhere
    Rewritten(_LOOKED_AT, _LOOKED_AT),
    Rewritten(
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor):
        kept = [self.places[i.item()] for i in ids]
        return self.take(x, kept)
""",
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor):
        kept = [self.places[i] for i in ids.tolist()]
        return self.take(x, kept)
""",
    ),
)
