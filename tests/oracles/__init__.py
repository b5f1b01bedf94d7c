"""Who else says what an encoding's scores are: libraries where one has it, and always the formula in plain Python.

Nothing here imports `models`: the numbers of an exported graph are compared with numbers that were made another way.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.oracles import (
    absolute,
    alibi,
    cope,
    deberta,
    fire,
    fox,
    kerple,
    none,
    rope,
    rope_scaled,
    sandwich,
    shaw,
    t5,
    transformer_xl,
    tupe,
    xpos,
)
from tests.oracles.answer import Oracle

ORACLES: Mapping[str, tuple[Oracle, ...]] = {
    "none": none.ORACLES,
    "integer": absolute.INTEGER,
    "sinusoidal": absolute.SINUSOIDAL,
    "learned": absolute.LEARNED,
    "shaw": shaw.ORACLES,
    "transformer-xl": transformer_xl.ORACLES,
    "t5": t5.ORACLES,
    "tupe": tupe.ORACLES,
    "deberta": deberta.ORACLES,
    "rope": rope.ORACLES,
    "rope-linear": rope_scaled.LINEAR,
    "rope-ntk": rope_scaled.NTK,
    "rope-dynamic": rope_scaled.DYNAMIC,
    "rope-yarn": rope_scaled.YARN_ORACLES,
    "rope-llama3": rope_scaled.LLAMA3_ORACLES,
    "rope-longrope": rope_scaled.LONGROPE_ORACLES,
    "rope-proportional": rope_scaled.PROPORTIONAL,
    "xpos": xpos.ORACLES,
    "alibi": alibi.ORACLES,
    "kerple": kerple.ORACLES,
    "sandwich": sandwich.ORACLES,
    "fire": fire.ORACLES,
    "cope": cope.ORACLES,
    "fox": fox.ORACLES,
}
