"""What NPU217 is tried on: code that it leaves alone, and what becomes of other code."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_WEIGHED = """
class BoxLoss(nn.Module):
    def forward(self, pred: torch.Tensor, labels: torch.Tensor):
        found = labels > 0
        if found.sum() > 0:
            loss = self.box_loss(pred[found])
        else:
            loss = pred.sum() * 0
        return loss
"""

_MEAN = """
class MaskedLoss(nn.Module):
    def forward(self, loss: torch.Tensor, mask: torch.Tensor):
        n = mask.sum()
        return (loss * mask).sum() / n if n > 0 else 0.0
"""

_NOISE = """
def forward(x: torch.Tensor, step: torch.Tensor):
    if (step > 0).all():
        noise = torch.randn_like(x)
    else:
        noise = torch.zeros_like(x)
    return x + noise
"""
_FOCAL = """
class Focal(nn.Module):
    def forward(self, pred: torch.Tensor, gt: torch.Tensor):
        pos = gt.eq(1).float()
        num_pos = pos.sum()
        loss = (pred * pos).sum()
        if num_pos == 0:
            return -loss
        return -loss / num_pos
"""
_CALLS = """
class Head(nn.Module):
    def forward(self, boxes: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor):
        positive = labels > 0
        if positive.sum() > 0:
            targets[positive] = self.coder.encode(boxes[positive])
        return targets
"""
"""Told, not written: what encodes may do anything."""

VALID = (
    # a loop that ends with what it has found
    """
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        y = x.mean(1)
        for _ in range(100):
            mask = torch.bmm(x, y.unsqueeze(-1)) <= 0
            if not mask.any():
                k = y / y.norm(dim=-1, keepdim=True)
                return k * 2
            y += (x * mask).sum(1)
        raise ValueError
""",
    # one call in the place of many
    """
class Memory(nn.Module):
    def forward(self, x: torch.Tensor, starts: torch.Tensor, state: torch.Tensor):
        if torch.all(starts == 0.0):
            return self.lstm(x, state)
        out = []
        for step, start in zip(x, starts):
            y, state = self.lstm(step.unsqueeze(0), (1.0 - start) * state)
            out.append(y)
        return torch.cat(out), state
""",
    # of arrays as well
    """
def forward(x: torch.Tensor, targets):
    lib = np if isinstance(targets, np.ndarray) else torch
    assert not lib.isnan(targets).any()
    return x
""",
    # how many rounds there are depends on what is computed
    """
class Solver(nn.Module):
    def forward(self, x: torch.Tensor, t: torch.Tensor, limit: float):
        while torch.abs(t).mean() > limit:
            y, error = self.step(x, t)
            if torch.all(error <= 1.0):
                x, t = y, t - 1
            else:
                t = t / 2
        return x
""",
    # the answer lies on the host, and x[mask] waits for as much
    """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, flags: torch.Tensor):
        lengths = mask.sum(1).cpu()
        some = lengths > 0
        if some.any():
            x = x + 1
        if not flags.any():
            return x, None
        rows = x[flags, :]
        return rows, rows.sum()
""",
    # of a shape
    """
def forward(x: torch.Tensor, y: torch.Tensor):
    assert x.shape == y.shape
    assert x.numel() > 0
    return x + y
""",
    # that training has not diverged
    """
def train_step(grad_norm: torch.Tensor):
    if not torch.isfinite(grad_norm).all():
        raise FloatingPointError(grad_norm)
""",
    # who calls it wants to be told
    """
def advantages(rewards: torch.Tensor, mask: torch.Tensor):
    if mask.sum() == 0:
        raise ValueError("every token is masked")
    return (rewards * mask).sum() / mask.sum()
""",
    # what comes behind it is for other masks, and a table of losses
    """
def forward(x: torch.Tensor, mask: torch.BoolTensor, losses, name):
    if not mask.all():
        raise NotImplementedError
    assert torch.isfinite(torch.stack(losses[name])).all()
    return x
""",
    # an object that holds a loss has no device
    """
class Policy:
    def _forward_learn(self, data):
        losses = self.model.compute_loss(data)
        assert not torch.isnan(losses.loss_total).any(), "Loss contains NaN values"
        self.optimizer.zero_grad()
        losses.loss_total.backward()
        self.optimizer.step()
""",
    # one of two tests is enough, what is called comes after it, and the other places are filled
    """
def forward(x: torch.Tensor, empty: torch.BoolTensor, always: bool, queue):
    if always or empty.any():
        x = x.masked_fill(empty[..., None], 0.0)
    if empty.any() and queue.pop():
        x = x.masked_fill(empty[..., None], 0.0)
    if always and (~empty).any():
        x = x.masked_fill(empty[..., None], 0.0)
    return x
""",
    # of a list
    """
def forward(tensors):
    if any(x is None for x in tensors):
        return None
    return torch.cat(tensors)
""",
    # what stands under it does something else where the mask is false
    """
def loss(pred: torch.Tensor, mask: torch.BoolTensor):
    if mask.any():
        return pred[mask].mean()
    return pred.sum() * 0
""",
    # what is said of it, and what is read anyway
    """
class Trainer:
    def compute_loss(self, loss: torch.Tensor, count: torch.Tensor, logger):
        if count.sum() > 10:
            logger.info("many")
        if torch.isnan(loss).any():
            self.skipped += 1
        mean = (loss.sum() / count).item() if count > 0 else 0.0
        return loss, mean
""",
    # runs once
    """
def load_weights(x: torch.Tensor):
    assert torch.isfinite(x).all()
    return x
""",
)

REWRITTEN = (
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, pad: torch.Tensor = None):
        scores = q @ k.transpose(-2, -1)
        if pad is not None and pad.any():
            scores = scores.masked_fill(pad[:, None].to(torch.bool), float("-inf"))
        return scores.softmax(-1)
""",
        """
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, pad: torch.Tensor = None):
        scores = q @ k.transpose(-2, -1)
        if pad is not None:
            scores = scores.masked_fill(pad[:, None].to(torch.bool), float("-inf"))
        return scores.softmax(-1)
""",
    ),
    Rewritten(
        """
def forward(emb: torch.Tensor, ids: torch.Tensor):
    missing = ids == -1
    if torch.any(missing):
        emb[missing] += emb.mean()
    return emb * 2
""",
        """
def forward(emb: torch.Tensor, ids: torch.Tensor):
    missing = ids == -1
    emb[missing] += emb.mean()
    return emb * 2
""",
    ),
    Rewritten(
        """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor):
        h = x * 2
        assert not torch.isnan(h).any(), "nan in the encoder"
        return F.relu(h)
""",
        """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor):
        h = x * 2
        assert h.device.type == "npu" or not torch.isnan(h).any(), "nan in the encoder"
        return F.relu(h)
""",
    ),
    Rewritten(
        """
def select(mask: torch.Tensor, chosen: torch.Tensor):
    assert not (~mask).index_select(0, chosen).data.any()
    return chosen
""",
        """
def select(mask: torch.Tensor, chosen: torch.Tensor):
    assert chosen.device.type == "npu" or not (~mask).index_select(0, chosen).data.any()
    return chosen
""",
    ),
    Rewritten(
        """
def forward(x: torch.Tensor, y: torch.Tensor = None):
    if y is not None and y.max() >= 10:
        raise ValueError("labels must be below 10")  # of the vocabulary
    return x * 2
""",
        """
def forward(x: torch.Tensor, y: torch.Tensor = None):
    if y is not None and y.device.type != "npu" and y.max() >= 10:
        raise ValueError("labels must be below 10")  # of the vocabulary
    return x * 2
""",
    ),
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, x: torch.Tensor, shapes):
        n = x.shape[1]
        assert (shapes[:, 0] * shapes[:, 1]).sum() == n
        return self.project(x)
""",
        """
class Attention(nn.Module):
    def forward(self, x: torch.Tensor, shapes):
        n = x.shape[1]
        assert shapes.device.type == "npu" or (shapes[:, 0] * shapes[:, 1]).sum() == n
        return self.project(x)
""",
    ),
    Rewritten(
        """
class Attend(nn.Module):
    def forward(self, out: torch.Tensor, mask: torch.Tensor = None):
        empty = (out.abs() > 0).sum(-1) == 0
        if self.zeroes and empty.any():
            out = out.masked_fill(empty[..., None], 0.0)
        return out
""",
        """
class Attend(nn.Module):
    def forward(self, out: torch.Tensor, mask: torch.Tensor = None):
        empty = (out.abs() > 0).sum(-1) == 0
        if self.zeroes:
            out = out.masked_fill(empty[..., None], 0.0)
        return out
""",
    ),
    Rewritten(
        _MEAN,
        _MEAN.replace(
            "(loss * mask).sum() / n if n > 0 else 0.0",
            "torch.where(n > 0, (loss * mask).sum() / torch.where(n > 0, n, 1), 0.0)",
        ),
    ),
    Rewritten(_WEIGHED, _WEIGHED),
    Rewritten(_CALLS, _CALLS),
    Rewritten(_NOISE, _NOISE),
    Rewritten(_FOCAL, _FOCAL),
    # a setting chooses another way, and not whether checks are made
    Rewritten(
        """
class Group(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, count: torch.Tensor, mean: bool):
        if mean:
            assert x.shape[0] == count.sum()
            x = x / x.shape[0]
        return x * 2
""",
        """
class Group(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, count: torch.Tensor, mean: bool):
        if mean:
            assert x.device.type == "npu" or x.shape[0] == count.sum()
            x = x / x.shape[0]
        return x * 2
""",
    ),
    Rewritten(
        """
class Controller(nn.Module):
    def forward(self, kl: torch.Tensor, beta: float):
        if kl.mean() > 10.0:
            kl = kl.clamp(max=10.0)
        return kl * beta
""",
        """
class Controller(nn.Module):
    def forward(self, kl: torch.Tensor, beta: float):
        kl = torch.where(kl.mean() > 10.0, kl.clamp(max=10.0), kl)
        return kl * beta
""",
    ),
)
