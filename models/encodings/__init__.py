"""The positional encodings, one file each. A new one is a new file and a line here."""

from __future__ import annotations

from models.encodings.alibi import ALiBi
from models.encodings.cope import CoPE
from models.encodings.deberta import DeBERTa
from models.encodings.encoding import Encoding
from models.encodings.fire import FIRE
from models.encodings.fox import FoX
from models.encodings.integer import Integer
from models.encodings.kerple import KERPLE
from models.encodings.learned import Learned
from models.encodings.none import NoEncoding
from models.encodings.rope import RoPE
from models.encodings.rope_dynamic import DynamicRoPE
from models.encodings.rope_linear import LinearRoPE
from models.encodings.rope_llama3 import Llama3RoPE
from models.encodings.rope_longrope import LongRoPE
from models.encodings.rope_ntk import NTKRoPE
from models.encodings.rope_proportional import ProportionalRoPE
from models.encodings.rope_yarn import YaRN
from models.encodings.sandwich import Sandwich
from models.encodings.shaw import Shaw
from models.encodings.sinusoidal import Sinusoidal
from models.encodings.t5 import T5
from models.encodings.transformer_xl import TransformerXL
from models.encodings.tupe import TUPE
from models.encodings.xpos import XPos

ENCODINGS: tuple[Encoding, ...] = (
    NoEncoding(),
    Integer(),
    Sinusoidal(),
    Learned(),
    Shaw(),
    TransformerXL(),
    T5(),
    TUPE(),
    DeBERTa(),
    RoPE(),
    LinearRoPE(),
    NTKRoPE(),
    DynamicRoPE(),
    YaRN(),
    Llama3RoPE(),
    LongRoPE(),
    ProportionalRoPE(),
    XPos(),
    ALiBi(),
    KERPLE(),
    Sandwich(),
    FIRE(),
    CoPE(),
    FoX(),
)
