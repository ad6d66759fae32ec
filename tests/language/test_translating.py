"""Finished texts find their translation; names, code and hostile texts stay as they are."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter

import pytest

from npufix.reports import language
from npufix.reports.html import rendering
from npufix.reports.language import layout, tr
from npufix.reports.language.catalogue import Catalogue, of_recording

SMALL = Catalogue(
    {
        "{n} findings": "{n} 个问题",
        "{counted}: {interval} can be saved{step}.": "{counted}：可节省{interval}{step}。",
        "about {low} to {high}": "约 {low} 到 {high}",
        "{what} can be saved": "{what}可以节省",
        "free": "空闲",
        "idle": "空闲",
        "the code is gone": "代码已不在",
        "{path} cannot be read": "无法读取 {path}",
        "the {unit} is long": "该{unit}很长",
    }
)


def test_parts_of_a_text_are_translated_where_they_are_messages() -> None:
    text = "3 findings: about 1 ms to 2 ms can be saved."
    assert SMALL.translate(text) == "3 个问题：可节省约 1 ms 到 2 ms。"


def test_a_name_that_is_a_word_of_ours_stays() -> None:
    assert SMALL.translate("free cannot be read") == "无法读取 free"
    assert SMALL.translate("the idle is long") == "该空闲很长"


@pytest.mark.usefixtures("chinese")
def test_what_is_said_of_a_step_is_said_of_a_recording_without_steps() -> None:
    said = (
        "copying between host and device takes 3 ms per step; for 1 ms of it nothing else runs "
        "(5% of the step)"
    )
    assert "每步" in tr(said)
    assert not re.search("step|record|步", tr(of_recording(said)))


def test_several_texts_in_one_line_are_translated_each() -> None:
    text = "idle.py; the code is gone; x.py cannot be read"
    assert SMALL.translate(text) == "idle.py; 代码已不在；无法读取 x.py"


@pytest.mark.parametrize(
    "code", ["x = free(y, idle)", "for n in findings:", "   + return x", "aten::add_; Mul; Cast"]
)
def test_code_stays(code: str) -> None:
    assert SMALL.translate(code) == code


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "about " * 20_000,
        "a to b; " * 900,
        "3 findings: about " * 400 + "can be saved.",
        "(" * 2_000,
        "{n} findings{",
        "\x00\x1b[31m cannot be read",
        "",
    ],
)
def test_hostile_texts_take_no_time(text: str, chinese: None) -> None:
    del chinese
    start = perf_counter()
    SMALL.translate(text)
    tr(text)
    assert perf_counter() - start < 2


def test_real_sentences(chinese: None) -> None:
    del chinese
    said = tr("18 findings: about 21.5 ms can be saved of a step of 25.8 ms.")
    assert said == "18 个问题：可节省约 21.5 ms（每步 25.8 ms）。"
    assert tr("value-fits-dtype: proven in every recorded call") == (
        "value-fits-dtype：由每次采集到的调用证明"
    )
    assert tr("NonZero, IndexPutV2, TensorMove") == "NonZero, IndexPutV2, TensorMove"


@pytest.mark.parametrize(
    ("english", "said"),
    [
        (
            (
                "The step of 132 ms is 74.2% exposed communication; Mul takes 21.9% of the compute "
                "time, asked for at /a/main.py:366; 6 findings could save at most 27.9 ms of a "
                "step of 132 ms."
            ),
            (
                "该步为 132 ms，其中 74.2% 为未掩盖通信；Mul 占计算时间的 21.9%，由 /a/main.py:366 "
                "引起；该步耗时 132 ms，解决 6 个问题可节省至多 27.9 ms。"
            ),
        ),
        (
            (
                "Computing takes 10.4 ms per step longer on rank 3 than on the median of 3 other "
                "ranks: 52 ms against 41.6 ms (19.8% of the step); 2 findings could save about "
                "10 ms to 10.1 ms of a step of 52.6 ms."
            ),
            (
                "rank 3 的计算每步比其他 3 个 rank 的中位数长 10.4 ms：52 ms 对 41.6 ms"
                "（占单步的 19.8%）；该步耗时 52.6 ms，解决 2 个问题可节省约 10 ms 到 10.1 ms。"
            ),
        ),
        ("Step 26 ms", "每步 26 ms"),
        ("step 26", "第 26 步"),
        (
            "torch 2.9.0, Level1, rank 2, mean of 3 steps, 1 left out",
            "torch 2.9.0, Level1, rank 2，3 步的平均值，另有 1 步未计入",
        ),
        (
            (
                "2 of 56 HCCS links are slow, at ranks 0 and 1: down to 7.2 GB/s where 18.0 GB/s "
                "are usual, which takes 1.41 ms per step (7.3%)"
            ),
            (
                "56 条 HCCS 链路中有 2 条慢，位于 rank 0 和 1：低至 7.2 GB/s，而通常为 18.0 GB/s，"
                "每步耗时 1.41 ms（7.3%）"
            ),
        ),
        (
            (
                "The device is idle 28.1 ms per step longer on rank 1 than on the median of 3 "
                "other ranks, because on rank 1 the device waits for the next batch, asked for at "
                "/a/main.py:3"
            ),
            (
                "rank 1 的设备每步比其他 3 个 rank 的中位数多空闲 28.1 ms，"
                "因为在 rank 1 上，设备等待下一个 batch，由 /a/main.py:3 引起"
            ),
        ),
        (
            (
                "In the groups of dp, 200 of 200 collectives per step over SDMA move 0.5 MB each "
                "in the middle, where 16 MB are needed to fill a link, asked for at /a/main.py:3"
            ),
            (
                "在 dp 组中，每步 200 次经 SDMA 的集合通信有 200 次过小，中位数每次 0.5 MB，"
                "而 16 MB 才能用满链路，由 /a/main.py:3 引起"
            ),
        ),
        (
            (
                "The average of all 5 steps is 73.7 ms longer (53.5%) than without 1 step of "
                "432 ms (step 12; 423 ms of it in aten::detach); 1 finding could save at most 23.1 "
                "ms of a step of 64 ms."
            ),
            (
                "全部 5 步的平均时长因 1 步（每步 432 ms，其中 423 ms 在 aten::detach 中："
                "第 12 步）而增加 73.7 ms（53.5%）；该步耗时 64 ms，解决 1 个问题可节省至多 "
                "23.1 ms。"
            ),
        ),
        (
            (
                "Activations are computed again in the backward pass: 99 kernels per step, 18.6 ms "
                "(24.8% of the step), asked for by CheckpointFunctionBackward."
            ),
            (
                "激活在反向传播中被重新计算：每步 99 个 kernel，18.6 ms（占单步的 24.8%），由 "
                "CheckpointFunctionBackward 发起。"
            ),
        ),
        (
            (
                "export A=2 (unless set: the dump does not record A and B); or export "
                "PER_STREAM_QUEUE=1 instead of fine core binding (not together)"
            ),
            (
                "export A=2（除非已设置：该性能数据没有记录 A and B）；或用 export "
                "PER_STREAM_QUEUE=1 代替细粒度绑核（不能同用）"
            ),
        ),
        (
            (
                "communication that nothing hides takes 4 ms (5.0% of the step: of concern); "
                "inside the collectives: 3 ms moving data, 1 ms idle; most moving data: hcom_a "
                "3 ms for an operand of 2 MB, hcom_b 2 ms for an operand of 4.28 MB"
            ),
            (
                "未被掩盖的通信耗时 4 ms（占单步的 5.0%：值得关注）；集合通信内部：搬运数据 3 ms，"
                "空闲 1 ms；搬运数据最久的：hcom_a 3 ms（操作数 2 MB），"
                "hcom_b 2 ms（操作数 4.28 MB）"
            ),
        ),
        (
            "compare the ranks: diagnose the one that waits least",
            "比较各 rank：诊断等待最少的那个",
        ),
        (
            (
                "2 of 4 collectives per step stand still for 9 ms (6.1% of the step): they neither "
                "move data nor wait for another rank: hcom_a 7 ms moving 2 MB; their sizes alone "
                "are no multiples of 512 bytes: 16,388,000"
            ),
            (
                "每步 4 次集合通信中有 2 次停滞，共 9 ms（占单步的 6.1%）：既不传输数据，"
                "也不等待其他 rank：hcom_a 7 ms（传输 2 MB）；唯独它们的大小不是 512 字节的"
                "整数倍：16,388,000"
            ),
        ),
        (
            "Step 10 ms -> 9 ms (-10.0%): -2 ms by exposed communication; +1 ms by free time.",
            "单步 10 ms -> 9 ms（-10.0%），其中未掩盖通信 -2 ms，空闲时间 +1 ms。",
        ),
    ],
)
def test_headlines_of_several_parts(english: str, said: str) -> None:
    assert language.both(english)[1] == said


@pytest.mark.parametrize(
    ("english", "said"),
    [
        (
            (
                "npufix: f is refuted, but no program shows it: the original does not run on "
                "the first arguments"
            ),
            "npufix：f 已被证伪，但没有程序能演示：原代码在第一组参数上无法运行",
        ),
        (
            (
                "Error: --assume: 'q: float' has no shape: write it as 'q: float[b, h, t, d]', "
                "'mask: bool[b, 1, t, t]' or 'scale: float[]'"
            ),
            (
                "错误：--assume：'q: float' 没有 shape：请写成 'q: float[b, h, t, d]'、"
                "'mask: bool[b, 1, t, t]' 或 'scale: float[]'"
            ),
        ),
        (
            "Error: --assume: 'flt' in 'q: flt[b]' is none of bool, int, float, complex",
            "错误：--assume：'q: flt[b]' 中的 'flt' 不在 bool, int, float, complex 之中",
        ),
        (
            (
                "beside this: for NaN and Inf: result is nan in the original, 0.0 in the "
                "patched code, for x=[4]"
            ),
            "此外：对于 NaN 和 Inf：result 在原代码中为 nan，在补丁代码中为 0.0，针对 x=[4]",
        ),
        (
            "modes: training mode, with gradients, without gradients, eval mode",
            "模式：训练模式，含梯度，不含梯度，eval 模式",
        ),
        (
            (
                "the original raises E: odd, the patched code returns; torch 2.7.1, CPU "
                "+ reference kernels: Mul"
            ),
            "原代码引发 E: odd，补丁代码正常返回；torch 2.7.1，CPU + 参考 kernel：Mul",
        ),
        (
            "no arguments were found under which line 3 of the original raises",
            "没有找到使原代码第 3 行引发异常的参数",
        ),
        (
            (
                "without float16: no kernel; without gradients in bfloat16: no kernel; "
                "equal in 12 runs otherwise"
            ),
            "不含 float16: no kernel; 不含 bfloat16 下的梯度：no kernel；除此之外，12 次运行均一致",
        ),
        (
            "whether torch computes gradients is True in the original, False in the patched code",
            "torch 是否计算梯度在原代码中为 True，在补丁代码中为 False",
        ),
        (
            "gradient of w float32[2] is 1 in the original, 2 in the patched code",
            "w float32[2] 的梯度在原代码中为 1，在补丁代码中为 2",
        ),
        (
            (
                "in 3 runs of f; gradient of w float32[2] is 1 in the original, 2 in the patched "
                "code, for x=[4], tiny rows, w=[2]; reference: torch"
            ),
            (
                "，共运行 3 次，范围 f；w float32[2] 的梯度在原代码中为 1，在补丁代码中为 2，"
                "针对 x=[4], 极小的行, w=[2]；reference: torch"
            ),
        ),
        ("tried: " + "x=[4, 5]; " * 60 + "x=[1]", "已尝试：" + "x=[4, 5]; " * 60 + "x=[1]"),
        ("1 changed function: 1 refuted.", "1 个修改的函数：1 个被证伪。"),
        (
            "result in step 2 float16: error 0.5, original 0.25",
            "第 2 步的结果 float16：误差 0.5，原代码 0.25",
        ),
    ],
)
def test_verdicts_of_several_parts(english: str, said: str) -> None:
    assert language.both(english)[1] == said


@pytest.mark.usefixtures("chinese")
def test_commands_within_a_remedy_stay_as_they_are_typed() -> None:
    call = 'from torch_npu.profiler.profiler import analyse; analyse("/x/y")'
    said = tr(f"copy the file again, or run `{call}` where torch_npu is installed")
    assert said == f"请重新复制文件；否则请在装有 torch_npu 的环境运行 `{call}`"


def test_both_languages_at_once() -> None:
    english, chinese_text = language.both("No known slow pattern in this source.")
    assert english == "No known slow pattern in this source."
    assert chinese_text == "源码中没有已知的慢写法。"
    assert language.current() == "en"


@pytest.mark.usefixtures("chinese")
def test_parts_of_a_collective_below_a_millisecond() -> None:
    assert tr("253 µs idle") == "空闲 253 µs"


def test_what_the_scripts_of_a_page_say_is_translated() -> None:
    """They fill in the numbers themselves: ``{n} of {n2}`` stayed English."""
    for file in Path(rendering.__file__).parent.glob("scripts/*.js"):
        for text in rendering._SAID.findall(file.read_text(encoding="utf-8")):
            assert language.both(text)[1] != text or " " not in text, text


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "de_DE"}, "zh"),
        ({"NPUFIX_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
        ({"NPUFIX_LANG": "zh"}, "zh"),
    ],
)
def test_the_environment_says_which_language(environ: dict[str, str], wanted: str) -> None:
    assert language.from_environment(environ) == wanted


def test_wide_characters_are_two_columns() -> None:
    assert layout.width("算子 Mul") == 8
    assert layout.pad("算子", 6, right=True) == "  算子"
    text = "每个 query 至少能看到一个 key，其余的被屏蔽；torch_npu.npu_fusion_attention(query)"
    lines = layout.wrap(text, 20)
    assert all(layout.width(line) <= 20 for line in lines if " " in line)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line.startswith(("，", "；", "。")) for line in lines)


def test_markdown_keeps_code_and_tables(chinese: None) -> None:
    del chinese
    lines = [
        "## Hot operators",
        "| computing | 1 ms |",
        "```diff",
        "## Hot operators",
        "```",
        "| `free` |",
    ]
    assert list(language.markdown(lines)) == [
        "## 热点算子", "| 计算 | 1 ms |", "```diff", "## Hot operators", "```", "| `free` |",
    ]  # fmt: skip
