"""What the host reads in loops over steps and batches, and in helpers that compute in each step."""

from __future__ import annotations

import pytest
from searching import found, rewritten


@pytest.mark.parametrize(
    ("start", "inside", "after", "written"),
    [
        ("total = 0.0", "pass", "return total", True),
        ("n, total = 0, 0.0", "n += 1", "return total / n", True),
        ("total = 0.0", "print(total)", "return total", False),  # somebody looks in each round
        ("total = batches.offset", "pass", "return total", False),  # perhaps no number
        ("total = 0.0", "total += 1", "return total", False),
        ("total = 0.0", "pass", "return lambda: total", False),
        ("total = 0.0", "pass", "return 0", False),  # nobody reads it
    ],
)
def test_a_sum_stays_on_the_device_until_the_loop_has_ended(
    start: str, inside: str, after: str, *, written: bool
) -> None:
    text = f"""
def train_epoch(model, batches):
    {start}
    for batch in batches:
        loss = model(batch)
        loss.backward()
        total += loss.item()
        {inside}
    {after}
"""
    sites = found(text, "NPU214")
    assert [site.rewrite is not None for site in sites] == [written]
    if written:
        new = rewritten(text, "NPU214")
        assert "total += loss.detach().float()" in new
        assert f"    total = float(total)\n    {after}" in new


@pytest.mark.parametrize(
    ("read", "kept"),
    [
        ("loss.detach().item()", "total += loss.detach().float()\n"),
        ("loss.detach().mean().item()", "total += loss.detach().mean().float()\n"),
        ("loss.add(scale.detach()).item()", "total += loss.add(scale.detach()).detach().float()\n"),
    ],
)
def test_what_is_detached_is_not_detached_again(read: str, kept: str) -> None:
    text = f"""
def train_epoch(model, batches, scale: torch.Tensor):
    total = 0.0
    for batch in batches:
        loss = model(batch).mean()
        loss.backward()
        total += {read}
    return total
"""
    assert kept in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    ("before", "in_epoch", "written"),
    [
        ("pass", "losses = []", True),
        ("losses = []", "pass", False),  # the second epoch appends tensors to numbers
        ("pass", "losses = []\n        run.history = losses", False),  # who holds it sees no more
    ],
)
def test_a_list_stays_on_the_device_where_one_loop_fills_it(
    before: str, in_epoch: str, *, written: bool
) -> None:
    text = f"""
def train_epochs(model, run, parts):
    {before}
    for part in parts:
        {in_epoch}
        for batch in part:
            loss = model(batch).mean()
            loss.backward()
            losses.append(loss.item())
        run.log(losses)
"""
    sites = found(text, "NPU214")
    assert [site.rewrite is not None for site in sites] == [written]


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("def ends(n: Tensor) -> Tensor", True),
        ("def ends(n: Tensor, most: int) -> tuple[int, list[int]]", True),
        ("def ends(n: Tensor)", False),
        ("def ends(n) -> Tensor", False),
        ("def ends(n: Tensor) -> str", False),
        ("def load_ends(n: Tensor) -> Tensor", False),
        ("def dequantize_rows(n: Tensor) -> Tensor", False),
        ("def plot_ends(n: Tensor) -> Tensor", False),
    ],
)
def test_a_helper_that_turns_tensors_into_tensors_runs_in_steps(head: str, *, told: bool) -> None:
    text = f"""
{head}:
    rows = []
    for i in range(len(n)):
        rows.append(int(n[i].item()))
    return torch.tensor(rows)
"""
    assert [site.rewrite is not None for site in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("step", "told"), [("self.scheduler.step", True), ("self.tokenizer.step", False)]
)
def test_a_pipeline_samples_in_steps_also_where_it_asks_for_its_locals(
    step: str, *, told: bool
) -> None:
    text = f"""
class ImagePipeline:
    def __call__(self, x: torch.Tensor, mask: torch.Tensor, times):
        first = mask.sum().tolist()
        for t in times:
            noise = self.transformer(x, t, mask.sum(1).tolist())
            x = {step}(noise, t, x)
            self.seen(locals()["x"])
        return x, first
"""
    in_steps = [site for site in found(text, "NPU214") if site.occasion.value == "step"]
    assert ["in every round" in site.problem for site in in_steps] == [True] * told


@pytest.mark.parametrize(
    ("repeats", "told"),
    [
        ("n", True),
        ("n[1:] - n[:-1]", True),
        ("4", False),
        ("x.shape[0]", False),
        ("torch.tensor([1, 2])", False),
        ("n, output_size=8", False),
        ("grid_thw[:, 0]", False),
    ],
)
def test_repeating_by_a_tensor_waits_for_its_sum(repeats: str, *, told: bool) -> None:
    text = f"""
class A(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor, grid_thw: torch.Tensor):
        return self.head(x.repeat_interleave({repeats}, dim=0))
"""
    if "," in repeats and "[" not in repeats:
        text = text.replace(", dim=0", "")
    assert ["sum of the repeats" in s.problem for s in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("f(torch.tensor(1.0, device=x.device)) if f is not None else x", True),
        ("x if f is not None else torch.tensor(1.0, device=x.device)", False),
        ("torch.tensor(1.0, device=x.device) if f is None else x", False),
    ],
)
def test_a_number_is_filled_on_the_device_unless_something_is_missing(
    code: str, *, written: bool
) -> None:
    text = f"""
class A(nn.Module):
    def forward(self, x: torch.Tensor, f):
        return self.head({code})
"""
    assert [s.rewrite is not None for s in found(text, "NPU219")] == [True] * written


@pytest.mark.parametrize(
    ("begun", "written"), [("[]\n        ids += given", False), ("torch.tensor(given)", True)]
)
def test_a_list_of_numbers_is_no_tensor(begun: str, *, written: bool) -> None:
    text = f"""
    def train_step(given, most):
        ids = {begun}
        for i, number in enumerate(ids):
            if number >= most:
                ids[i] = 0
        return ids
    """
    assert any(site.rewrite for site in found(text, "NPU250")) is written


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("obs = g(batch, lambda a: torch.from_numpy(a).to(x.device))", False),
        ("if b == 'size':\n                x += torch.tensor([n, 2]).to(x.device)", False),
        ("if n == 3:\n                x += torch.tensor([n, 2]).to(x.device)", True),
        ("x += torch.tensor(meta[b]).to(x.device)", True),
    ],
)
def test_what_each_round_copies_is_there_before_the_loop(code: str, *, told: bool) -> None:
    text = f"""
    def train_step(x: torch.Tensor, meta, batches, n, g):
        for b in batches:
            batch = meta
            {code}
        return x
    """
    assert any("each round waits" in site.problem for site in found(text, "NPU219")) is told


@pytest.mark.parametrize("device", ["", ", device=x.device"])
@pytest.mark.parametrize("inner", ["pass", "def cut():\n                nonlocal sizes"])
def test_a_tensor_like_one_of_the_host_is_on_the_host(device: str, inner: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, sizes):
            {inner}
            sizes = torch.tensor(sizes{device})
            return x[: sizes.new_tensor([1, 2, 3]).sum()]
    """
    assert any("new_tensor" in site.code for site in found(text, "NPU219")) is bool(device)


@pytest.mark.parametrize(("later", "told"), [("x[:, :longest]", False), ("x", True)])
def test_a_check_of_what_the_host_needs_anyway_stays(later: str, *, told: bool) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor):
            longest = n.max()
            assert longest <= x.shape[-1]
            return {later}
    """
    assert bool(found(text, "NPU217")) is told


def test_no_choice_between_tensors_of_different_lengths() -> None:
    text = """
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor):
            longest = (n / self.stride).max()
            if longest > x.shape[-1]:
                x = F.pad(x, (0, longest - x.shape[-1]))
            return x
    """
    assert [site.rewrite for site in found(text, "NPU217")] == [None]


@pytest.mark.parametrize(("test", "told"), [("loss.item() > 1.0", False), ("self.training", True)])
def test_what_a_test_has_read_costs_nothing_to_print(test: str, *, told: bool) -> None:
    text = f"""
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor):
            loss = F.mse_loss(x, y)
            if {test}:
                print(f"loss {{loss.item()}}")
            return loss
    """
    assert bool([s for s in found(text, "NPU214") if "log" in s.problem]) is told


@pytest.mark.parametrize(("kind", "told"), [("adam_kind", True), ("cpu_adam", False)])
def test_an_optimizer_of_the_host_has_no_fused_kernel(kind: str, *, told: bool) -> None:
    text = f"""
    def build(params, plain, other):
        if plain:
            {kind} = torch.optim.Adam
        else:
            {kind} = other
        return {kind}(params, lr=1e-3)
    """
    assert bool(found(text, "NPU169")) is told


@pytest.mark.parametrize("later", ["mask = x > n", "mask = mask * n"])
def test_what_nobody_reads_is_not_made_elsewhere(later: str) -> None:
    text = f"""
    def forward(x: torch.Tensor, n: int):
        mask = torch.zeros(n).to(x.device)
        {later}
        return mask
    """
    assert bool(found(text, "NPU212")) is ("mask * n" in later)


@pytest.mark.parametrize(("how", "told"), [("max()", False), ("max(-1).values", True)])
def test_one_number_in_double_precision_costs_nothing(how: str, *, told: bool) -> None:
    text = f"""
    def forward(x: torch.Tensor):
        return (1 / x.abs().{how}.double()).float()
    """
    assert bool(found(text, "NPU225")) is told


@pytest.mark.parametrize(("asked", "told"), [("accum_freq == 1", False), ("args.amp", True)])
def test_what_is_no_round_of_several_reduces_its_gradients(asked: str, *, told: bool) -> None:
    text = f"""
    from torch.nn.parallel import DistributedDataParallel

    def train(model, batches, accum_freq, optimizer, args):
        for i, batch in enumerate(batches):
            if {asked}:
                model(batch).backward()
                if (i + 1) % accum_freq == 0:
                    optimizer.step()
    """
    assert bool(found(text, "NPU175")) is told


@pytest.mark.parametrize(
    ("called", "told"),
    [
        ("self.extract(x, seq_lens)", True),
        ("self._upper.extract(x, seq_lens)", False),  # another object's
        ("x", False),
    ],
)
def test_a_method_that_a_step_calls_through_others_runs_in_it(called: str, *, told: bool) -> None:
    text = f"""
class Upper:
    def lengths(self, seq_lens):
        return torch.arange(seq_lens.max().item())

class Finder(Upper):
    def forward_train(self, x, seq_lens):
        return {called}

    def extract(self, x, seq_lens):
        self.save_images(x)
        return x + self.lengths(seq_lens)

    def save_images(self, x):
        write(x.cpu())
"""
    (*_, line) = [0, *(site.line for site in found(text, "NPU214"))]
    assert ("max().item()" in [*text.splitlines(), ""][line - 5]) is told


@pytest.mark.parametrize(
    ("name", "known", "told"),
    [
        ("StepContext", "device: str", True),
        ("WindowCachePool", "device: str", True),
        ("StepContext", "size: int", False),  # nothing says that it holds tensors of the device
        ("Settings", "device: str", False),
    ],
)
def test_what_keeps_tensors_of_a_step_is_made_in_each(name: str, known: str, *, told: bool) -> None:
    text = f"""
class {name}:
    def new(self, seq_lens, {known}):
        return torch.arange(seq_lens.max().item())
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("head", "asked", "host"),
    [
        ("ChessEnv(gym.Env)", "self.board.play", True),
        ("ChessWrapper(_EnvWrapper)", "self.board.play", True),
        ("ChessEnv(Base)", "self._env.step", True),
        ("ChessEnv(Base)", "self.board.play", False),  # it may compute on the device itself
        ("IsaacChessEnv(gym.Env)", "self.board.play", False),
        ("ChessWrapper(VecEnvWrapper)", "self.venv.step", False),
        ("ResizeFrames(BaseTransform)", "self.board.play", True),
        ("Policy(nn.Module)", "self.board.play", False),
    ],
)
def test_what_hands_on_numbers_of_a_simulator_is_on_the_host(
    head: str, asked: str, *, host: bool
) -> None:
    text = f"""
import gym

class {head}:
    def forward(self, actions: torch.Tensor):
        reward = {asked}(actions)
        return torch.tensor(1.0, device=actions.device) * reward
"""
    (site,) = found(text, "NPU219")
    assert (site.occasion.value == "host") is host


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ("self.shift = self.shift + 1", True),
        ("log = get_logger()\n            log.warning('large')", False),
        ("found = x[mask]\n            self.last = found.mean().item()", False),  # waits as well
        ("self.seen = self._env.reset(mask.nonzero())", False),  # only a simulator can do that
    ],
)
def test_a_branch_that_only_tells_or_reads_anyway_is_not_spoken_of(arm: str, *, told: bool) -> None:
    text = f"""
class A(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.BoolTensor):
        if mask.any():
            {arm}
        return x
"""
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(("left", "told"), [("return False", False), ("self.n = 1", True)])
def test_what_is_made_once_after_training_is_kept(left: str, *, told: bool) -> None:
    text = f"""
class BottleneckLayer(nn.Module):
    def get_table(self, x: torch.Tensor, force=False):
        if self.table.numel() > 0 and not force:
            {left}
        self.table = self.make(x, torch.arange(x.max().item()))
        return True
"""
    sites = found(text, "NPU214")
    assert ([site.occasion.value for site in sites] == ["step"]) is told


@pytest.mark.parametrize(
    ("head", "is_told"),
    [
        ("class BoxLossComputation:\n    def __call__(self, x: torch.Tensor):", True),
        ("class LossHistory:\n    def __call__(self, x: torch.Tensor):", False),
        ("class TargetPreparer:\n    def __call__(self, x: torch.Tensor):", True),
        ("class LossCriterion(nn.Module):\n    def decode(self, x: torch.Tensor):", False),
        ("class Loss(nn.Module):\n    def _get_unpad_data(self, x: torch.Tensor):", False),
    ],
)
def test_places_are_told_where_classes_are_for_steps(head: str, *, is_told: bool) -> None:
    text = f"{head}\n        at = torch.nonzero(x > 0).squeeze(1)\n        return x[at].sqrt()\n"
    assert bool(found(text, "NPU214")) is is_told


@pytest.mark.parametrize(
    ("given", "counts"), [("", True), (", dim=0", False), (", return_inverse=True", False)]
)
def test_different_rows_are_not_counted_as_numbers_are(given: str, *, counts: bool) -> None:
    text = (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        f"        return self.out(torch.unique(x{given}))\n"
    )
    (site,) = found(text, "NPU214")
    assert ("bincount" in site.problem) is counts


@pytest.mark.parametrize(("names", "told"), [("_, y", False), ("found, y", True)])
def test_classes_of_a_loss_are_numbered_anew(names: str, *, told: bool) -> None:
    text = (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, kinds: torch.Tensor):\n"
        f"        {names} = torch.unique(kinds, return_inverse=True)\n"
        "        loss = F.cross_entropy(x, y)\n"
        f"        return loss{' + found.sum()' * told}\n"
    )
    assert bool(found(text, "NPU214")) is told


def test_rows_of_labels_need_no_places() -> None:
    text = (
        "class Loss(nn.Module):\n    def forward(self, x: torch.Tensor, kind: torch.Tensor):\n"
        "        y = torch.zeros_like(x)\n        at = torch.nonzero(kind != 3).squeeze(1)\n"
        "        {}y[at, kind[at]] = 1\n        return y\n"
    )
    assert [site.rewrite is not None for site in found(text.format(""), "NPU214")] == [True]
    later = found(text.format("kind = kind + 1\n        "), "NPU214")
    assert [site.rewrite is not None for site in later] == [False]


@pytest.mark.parametrize(
    ("places", "use", "after"),
    [
        ("r, c = torch.where(x > 1)", "y[r, c] = 0", "y[x > 1] = 0"),
        ("p = (x > 1).long().nonzero()", "y[p[:, 0], p[:, 1]] = 1", "y[x > 1] = 1"),
        ("p = (x > 1).long().nonzero()", "y[p[:, 1], p[:, 0]] = 1", ""),
        ("at = torch.where(x[:, 0] > 0)[0]", "y[at, 1:] = 2.5", "y[:, 1:][x[:, 0] > 0] = 2.5"),
        ("at = k.nonzero().squeeze(1)", "y[at] = True", "y[k != 0] = True"),
        ("m = x > 1", "y[torch.where(m)] = 2", "y[m] = 2"),
        ("m = x > 1; at = torch.where(m)", "m[at] = False", "m[m.clone()] = False"),
        ("at = torch.where(x > 1)", "y[at] = 1; y[at] = 2", "at = x > 1"),
        ("at = torch.where(x[:, 0] > 0)[0]", "y[at] = x[at]", ""),
        ("at = torch.where(x[:, 0] > 0)[0]", "y[at] = 1; y += len(at)", ""),
        ("at = torch.where(x[:, 0] > 0)[0]", "y[at] += 1", ""),
        ("at = torch.nonzero(x[:, 0] > 0).squeeze()", "y[at] = 1", ""),
        ("at = torch.where(x[:, 0] > 0)[0]", "y[at, None] = 1", ""),
    ],
)
def test_a_mask_says_where_a_number_is_written(places: str, use: str, after: str) -> None:
    lines = "\n        ".join(f"y = torch.zeros_like(x); {places}; {use}".split("; "))
    text = (
        "class Loss(nn.Module):\n    def forward(self, x: torch.Tensor, k: torch.Tensor):\n"
        f"        {lines}\n        return y\n"
    )
    sites = [site for site in found(text, "NPU214") if site.rewrite is not None]
    assert len(sites) == bool(after)
    assert not after or after in rewritten(text, "NPU214")


@pytest.mark.parametrize(("least", "kept"), [("0.5", False), ("1.0", True)])
def test_a_limit_makes_no_floats_of_counts(least: str, *, kept: bool) -> None:
    text = (
        "class Loss(nn.Module):\n    def forward(self, x: torch.Tensor, ids: torch.Tensor):\n"
        f"        return ids * max((x > 0).sum().item(), {least})\n"
    )
    assert any(site.rewrite for site in found(text, "NPU214")) is kept


def test_a_list_of_one_column_is_a_slice() -> None:
    text = "def centre(x: torch.Tensor):\n    return x[:, [2]] + x[[1]]\n"
    assert "x[:, 2:3] + x[[1]]" in rewritten(text, "NPU267")


def test_a_device_that_is_chosen_is_one() -> None:
    text = (
        "class Loss(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        "        device = torch.device('cuda') if x.is_cuda else torch.device('cpu')\n"
        "        return x * torch.eye(x.shape[0]).to(device)\n"
    )
    assert "torch.eye(x.shape[0], device=device)" in rewritten(text, "NPU212")
