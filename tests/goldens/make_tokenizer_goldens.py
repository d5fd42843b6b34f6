#!/usr/bin/env python3
"""Writes tests/goldens/tokenizers: small tokenizers of every supported kind with what the reference libraries make
of some two hundred strings.

Made with Python 3.11, tokenizers 0.23.3, sentencepiece 0.2.3, transformers 5.23.0, jinja2 3.1.6:
    pip install tokenizers==0.23.3 sentencepiece==0.2.3 transformers==5.23.0 jinja2==3.1.6
    make_tokenizer_goldens.py CORPUS TEMPLATES
CORPUS is a text in the public domain (tinyshakespeare's input.txt); TEMPLATES is a directory of *.jinja files.
"""

import json
import pathlib
import random
import shutil
import sys
import tempfile

import sentencepiece
from transformers.utils import chat_template_utils
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "tokenizers"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

UNICODE_LINES = [
    "Straße, naïve café, coöperate, Ångström, résumé", "Привет, как дела? Всё хорошо.", "日本語のテキストと漢字、そしてカナ",
    "我想在apple工作，今天天气很好。", "한국어 문장입니다", "नमस्ते दुनिया", "مرحبا بالعالم", "🙂🙃👍🏽👩‍👩‍👧 🇩🇪 🚀🚀", "e\u0301a\u0308o\u0323\u0302",
]

HAND_STRINGS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\n\n\n", " \n", "\n ", "\t\n", " \t \n  x", "a", " a", "  a", "a ", "a  ", "a  b",
    "Hello", " Hello", "Hello world", "Hello  world", "HELLO WORLD", "Hello, world!", " Hello, world! ", "hello\nworld",
    "hello\n\nworld\n", "hello \n \n world", "tabs\tand\ttabs", "trailing newline\n", "trailing spaces   ", "   leading",
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "'s's 't'RE 'ſ", "rock'n'roll '90s ''",
    "0", "12", "123", "1234", "12345", "3.14159", "1,000,000", "v1.2.3-rc4", "2026-11-20T10:58:05Z", "½ ² Ⅳ ٣ १२३ ①②",
    "for (int i = 0; i < n; ++i) {\n    x[i] += 1;\n}", "def f(x):\n\treturn x**2  # square\n", "{\"a\": [1, 2, null]}", "a/b\\c|d",
    "!!!???...", "------=======", "``code``", "@user #tag $5 100% & more", "e-mail: a.b@c.org", "https://example.org/a?b=c&d=e#f",
    "Straße", "naïve café", "ÅNGSTRÖM", "cafe\u0301", "e\u0301\u0323", "o\u0323\u0302 \u1ed9", "\u212b \u2126", "ﬁ ﬂ ﬀ", "각 \u1100\u1161\u11a8",
    "Привет, мир!", "Ελληνικά", "日本語", "日本語 のテキスト", "我想在apple工作1314151天～", "한국어 문장", "नमस्ते", "مرحبا", "שלום", "ภาษาไทย", "កាន់តែពិសេស",
    "🙂", "🙂🙂", " 🙂", "👩‍👩‍👧", "🇩🇪🇫🇷", "👍🏽", "🚀 (normal) 😶‍🌫️ ✅", "\U0001F9D1\u200d\U0001F680", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\U00020000",
    "\u00a0nbsp\u00a0", "\u3000full width\u3000", "\u2003em\u2009thin", "\u200bzero\u200b", "\ufeffbom", "\u180e mvs\u180e", "\u0085nel\u0085 x", "\u2028ls\u2029ps",
    "\x00", "a\x00b", "\x01\x02\x1f\x7f", "\u0080\u009f", "\ufffd", "\uffff", "\ue000", "\U0010ffff",
    "▁", "▁▁a", "a▁b", " ▁ ", "Ġhello", "<0x0A>", "<0xZZ>", "<unk>", "<s>", "</s>", "<s>hi</s>", " <s> hi </s> ", "<s><s>", "a<s>b", "x <s>",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_start", "<|im_end|>>", "<|begin_of_text|>x", "<think>hm</think> ok", "<think>",
    "  <mask>  mask", "a<mask>b", "word", "aword", "word!", "sword word", "wordword", " word  word ", "<left>  x", "  <left>", "x <right>  y", "<right>\n\n",
    "NORM", "norm", "a NORM b", "\u00c5ng A\u030ang", "KING RICHARD II:\nWhat, what!", "First Citizen:\nBefore we proceed", "O Romeo, Romeo!",
    "a" * 50, "ab" * 30, " " * 40, "\n" * 20, "the " * 20, "é" * 15, "🙂" * 9, "x" + " " * 17 + "y", "-" * 33,
]


def strings():
    """The hand-written ones and seeded mixtures of their pieces."""
    rng = random.Random(20261120)
    pieces = [s for s in HAND_STRINGS if 0 < len(s) < 30] + UNICODE_LINES
    glue = ["", " ", "  ", "\n", "\t", "\n\n", "'", "."]
    mixed = ["".join(rng.choice(pieces) + rng.choice(glue) for _ in range(rng.randint(2, 5))) for _ in range(70)]
    return HAND_STRINGS + mixed


def train(tokenizer, lines, vocab_size, special, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())


def byte_level_base(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train(tokenizer, lines, 640, [], sorted(pre_tokenizers.ByteLevel.alphabet()))["model"]


def sentencepiece_style_base(lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    return train(tokenizer, lines, 700, special, [])["model"]


def with_model(model, **changes):
    return Tokenizer(models.BPE(
        vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], **changes))


def byte_level(model, pre_tokenizer, added, normalizer=None, template=None, ignore_merges=False):
    tokenizer = with_model(model, ignore_merges=ignore_merges)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    level = processors.ByteLevel(trim_offsets=False)
    if template:
        tokenizer.post_processor = processors.Sequence([level, template(tokenizer)])
    else:
        tokenizer.post_processor = level
    return tokenizer


def bos_template(bos, eos=None):
    def make(tokenizer):
        special = [(t, tokenizer.token_to_id(t)) for t in (bos, eos) if t]
        return processors.TemplateProcessing(single=f"{bos} $A" + (f" {eos}" if eos else ""), special_tokens=special)
    return make


def special(*contents):
    return [AddedToken(c, special=True, normalized=False) for c in contents]


def sentencepiece_style(model, normalizer, pre_tokenizer):
    tokenizer = with_model(model, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.post_processor = bos_template("<s>")(tokenizer)
    return tokenizer


def gemma_style(model):
    """Gemma 3 and 4: merges run over the whole text, and none of its spaces is cut."""
    tokenizer = with_model(model, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.post_processor = bos_template("<s>")(tokenizer)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def tokenizers_of(byte_model, piece_model):
    level = pre_tokenizers.ByteLevel
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "gpt2", byte_level(byte_model, level(add_prefix_space=False), special("<|endoftext|>"))
    yield "llama3", byte_level(
        byte_model, pre_tokenizers.Sequence([split(LLAMA3), level(add_prefix_space=False, use_regex=False)]),
        special("<|begin_of_text|>", "<|im_start|>", "<|im_end|>"), template=bos_template("<|begin_of_text|>"), ignore_merges=True)
    yield "qwen", byte_level(
        byte_model, pre_tokenizers.Sequence([split(QWEN2), level(add_prefix_space=False, use_regex=False)]),
        special("<|im_start|>", "<|im_end|>") + [AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)],
        normalizer=normalizers.NFC())
    odd = [AddedToken("<mask>", special=True, normalized=False, lstrip=True), AddedToken("word", normalized=False, single_word=True),
           AddedToken("<left>", normalized=False, lstrip=True), AddedToken("<right>", normalized=False, rstrip=True),
           AddedToken("NORM", normalized=True)]
    yield "digits", byte_level(
        byte_model, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=True)]),
        special("<s>", "</s>") + odd, normalizer=normalizers.NFC(), template=bos_template("<s>", "</s>"))
    yield "llama2_legacy", sentencepiece_style(piece_model, legacy, None)
    yield "llama2_first", sentencepiece_style(
        piece_model, None, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False))
    yield "gemma", gemma_style(piece_model)
    yield "metaspace", sentencepiece_style(piece_model, None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True))


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def expectation(texts, encode, decode, random_ids):
    """decoded holds only what differs from the text."""
    ids = [encode(text, False) for text in texts]
    decoded = {str(i): decode(ids[i]) for i, text in enumerate(texts) if decode(ids[i]) != text}
    return {"ids": ids, "with_special": encode("Hello world", True), "decoded": decoded,
            "random": [[sample, decode(sample)] for sample in random_ids]}


def write_tokenizer_json(name, tokenizer, texts):
    directory = OUT / name
    directory.mkdir(parents=True)
    value = json.loads(tokenizer.to_str())
    if name in ("gpt2", "llama2_legacy"):  # the older way of writing merges
        value["model"]["merges"] = [" ".join(merge) for merge in value["model"]["merges"]]
    dump(directory / "tokenizer.json", value)
    reference = Tokenizer.from_str(json.dumps(value))
    rng = random.Random(7)
    # ByteFallback repairs a run of bytes as a whole, which no stream can; random ids are for byte-level ones.
    random_ids = [] if value["model"]["byte_fallback"] else [
        [rng.randrange(reference.get_vocab_size()) for _ in range(rng.randint(1, 30))] for _ in range(60)]
    dump(directory / "expected.json", expectation(
        texts, lambda t, s: reference.encode(t, add_special_tokens=s).ids, lambda ids: reference.decode(ids), random_ids))


def write_sentencepiece(name, corpus, texts, **options):
    directory = OUT / name
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=f"{scratch}/m", model_type="bpe", vocab_size=600, character_coverage=0.995,
            normalization_rule_name="identity", minloglevel=2, **options)
        shutil.copy(f"{scratch}/m.model", directory / "tokenizer.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    # Control tokens in text are our own convention, as is omitting the unknown token from decoded text.
    known = [t for t in texts if not any(c in t for c in ("<s>", "</s>", "<unk>", "\x00"))]
    value = {"texts": known, "ids": [reference.encode(t) for t in known]}
    dump(directory / "expected.json", value)


CONVERSATIONS = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "Hi")],
    [("user", "Hi"), ("assistant", "Hello!"), ("user", "How are you?")],
    [("system", "  Spaces \n"), ("user", " x \n"), ("assistant", "\n y "), ("user", "z"), ("assistant", "last")],
    [("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nanswer"), ("user", "again"), ("assistant", "<think>a</think>b")],
    [("user", "<tool_response>1</tool_response>"), ("assistant", "ok"), ("user", "<tool_response>2</tool_response>")],
    [("system", "ünï 日本 🙂"), ("user", "{{ x }} {% y %} {# z #} \\ \" ' \t <|im_end|>"), ("assistant", ""), ("user", "")],
    [("user", "a"), ("user", "b"), ("system", "late system"), ("assistant", "c")],
    [("tool", "result 1"), ("tool", "result 2"), ("user", "go")],
]

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

# One construct each; rendered with the second conversation. An error is an expectation too.
SNIPPETS = [
    CHATML, "plain\n", "two\n\n", "a\r\nb\rc\n", "", "\n", "{{ 'x' }}\n", "{# c #}\nx", "a {# c #}\n b", "  {% if true %}\n  x\n  {% endif %}\ny",
    "  {%+ if true %}x{% endif %}", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", "{% if true +%}\nx{% endif %}", "a {{- ' b ' -}} c", "x  {{ 1 }}\n  y",
    "  {# c #}  x", " {% set a = 1 %} {{ a }}", "{%- for m in messages %}\n{{ m.role }}\n{%- endfor %}", "{{ '\\n\\t\\\\\\'\\x41\\u00e9\\q' }}", '{{ "it\'s" "joined" }}',
    "{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 + 1 }} {{ 2.0 }} {{ 10 / 5 }}", "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }}",
    "{{ 'ab' * 3 }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 != 'a' }}", "{{ not true or false and true }}", "{{ '' or 'x' }} {{ 0 and 1 }} {{ none or 'd' }}",
    "{{ 'a' in 'cat' }} {{ 'z' not in 'cat' }} {{ 1 in [1, 2] }} {{ 'role' in messages[0] }} {{ 'x' in undefined_thing }}", "{{ 'yes' if false }}|{{ 'yes' if true else 'no' }}|{{ 'a' if false else 'b' if false else 'c' }}",
    "{{ missing }}|{{ messages[0].missing }}|{{ messages[9] }}|{{ messages[0]['none'] }}", "{{ missing.x }}", "{{ missing + 'a' }}", "{{ missing is defined }} {{ messages is defined }} {{ missing is not defined }} {{ tools is none }} {{ tools is defined }}",
    "{{ 'a' is string }} {{ messages is iterable }} {{ messages is mapping }} {{ messages[0] is mapping }} {{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }}",
    "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is equalto 1 }} {{ 1 is in [1] }} {{ 'a' is string and 1 is number }}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }} {% endfor %}",
    "{% for i in [1, 2, 3, 4] if i is even %}{{ i }}{{ loop.last }}{% else %}none{% endfor %}|{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in messages[0] | items %}{{ k }}{% endfor %}{% for k in messages[0] %}{{ k }}{% endfor %}", "{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}{{ 'aé🙂'[1] }}{{ 'aé🙂'[-1] }}{{ 'aé🙂'[::-1] }}{{ 'aé🙂' | length }}",
    "{% for a in [1, 2] %}{% for b in 'xy' %}{{ loop.depth }}{{ a }}{{ b }} {% endfor %}{% endfor %}", "{% set a, b = 1, 2 %}{{ a + b }}", "{% set t %}in {{ 1 }} block\n{% endset %}[{{ t }}]", "{% set x = [1, 2, 3, 4, 5] %}{{ x[1:] | join(',') }} {{ x[:-1] | join(',') }} {{ x[::2] | join(',') }} {{ x[::-1] | join(',') }} {{ x[-2:] | join }} {{ x[10:] | join }} {{ x[3:0:-1] | join }}",
    "{% macro m(a, b='B') %}({{ a }}{{ b }}){% endmacro %}{{ m('x') }}{{ m('x', b='y') }}{{ m(b=1, a=2) }}{{ m() }}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\n\na'.lstrip('\n') }}|{{ 'a  '.rstrip() }}|{{ 'a,b,c'.split(',') | join('+') }}|{{ 'a,b,c'.split(',', 1)[1] }}|{{ ' a  b '.split() | join('_') }}|{{ 'a b c '.split(none, 1) | join('_') }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'aXb'.upper() }}{{ 'ÀB'.lower() }}{{ 'hello World'.capitalize() }}{{ 'aaa'.replace('a', 'b', 2) }}{{ ','.join(['x', 'y']) }}{{ 'abcabc'.find('c') }}{{ 'é🙂b'.find('b') }}{{ 'aaaa'.count('aa') }}",
    "{{ messages[0].get('role') }}{{ messages[0].get('x', 'd') }}{{ messages[0].get('x') }}{{ messages[0].keys() | list | join(',') }}{{ messages[0].values() | join(',') }}",
    "{{ '  x ' | trim }}|{{ 'xyx' | trim('x') }}|{{ 'abc' | upper }}|{{ 'ABC' | lower }}|{{ 'aBC' | capitalize }}|{{ 'abc' | replace('b', 'x') }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}|{{ '' | d('e') }}|{{ [3, 4] | first }}|{{ [3, 4] | last }}|{{ 'ab' | reverse }}",
    "{{ '12' | int + 1 }}|{{ 'x' | int }}|{{ 3.9 | int }}|{{ -3 | abs }}|{{ 5 | string + 'x' }}|{{ [1, 2] | length }}|{{ [1, 2] | count }}", "{{ messages | map(attribute='role') | join(',') }}|{{ ['a', 'b'] | map('upper') | join }}|{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join }}|{{ messages | rejectattr('role', 'eq', 'user') | list | length }}|{{ [0, 1, 2] | select | join }}|{{ [1, 2, 3] | reject('odd') | join }}",
    "{{ messages | tojson }}", "{{ messages | tojson(indent=2) }}", "{{ {'a': [1, 2.5, none, true], 'b': {}, 'c': []} | tojson(indent=4) }}", "{{ '<é\"\\n\\u0001/&>' | tojson }}", "{{ {'a': 1}.a }}{{ {'a': 1}['a'] }}{{ dict(b=2).b }}", "{{ (1, 2)[1] }}{{ [] | length }}{{ () | length }}",
    "{{ raise_exception('no ' + 'way') }}", "{% if messages[0].role == 'system' %}S{% elif true %}E{% else %}X{% endif %}{% if false %}{% elif messages %}M{% endif %}", "{% generation %}{{ 1 }}{% endgeneration %}", "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", "{{ strftime_not_there is defined }}",
    "{{ 'a' + 1 }}", "{{ 1 < 'a' }}", "{{ 1 // 0 }}", "{{ 5.x }}", "{{ none.x }}|", "{{ none['x'] }}|", "{{ 'a'.b }}|", "{{ ['a'].0 }}", "{% set messages = messages[1:] %}{{ messages | length }}", "{% for m in messages %}{% set role = m.role %}{{ role }}{% endfor %}{{ role is defined }}",
    "{{ '%' }}{{ '}}' }}{{ '{%' }}{{ {'a': {'b': 1}}.a.b }}", "{{ -1 }}{{ +1 }}{{ - -1 }}{{ not not true }}{{ 1 - -1 }}", "{{ 'x' if 1 else 'y' ~ 'z' }}{{ ('x' if 0 else 'y') ~ 'z' }}", "{{ true == 1 }}{{ none == false }}{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1} }}", "{{ 2 ~ 3 * 4 }}{{ '1' + '2' ~ '3' }}",
]

# Refused by us and by Jinja alike.
BROKEN = ["{% if %}", "{{", "{{ 'a }}", "{% for x %}{% endfor %}", "{% endif %}", "{% if true %}", "{{ 1 + }}", "{{ a b }}", "{{ (1 }}", "{{ x | nofilter }}", "{{ 1 is notest }}", "{% break %}", "{# c", "{{ ) }}", "{% set x %}", "{{ '\\x4' }}", "{{ f(a=1, 2) }}", "{% nosuchtag %}", "{{ $ }}"]


def render(compiled, conversation, add_generation_prompt):
    messages = [{"role": role, "content": content} for role, content in conversation]
    try:
        return compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt,
                               bos_token="<s>", eos_token="</s>")
    except Exception as error:
        print(f"  error as expected? {error!r}", file=sys.stderr)
        return None


def template_goldens(templates):
    compile_template = chat_template_utils._cached_compile_jinja_template
    real = {}
    for path in sorted(templates.glob("*.jinja")):
        compiled = compile_template(path.read_text(encoding="utf-8"))
        real[path.name] = [[render(compiled, c, False), render(compiled, c, True)] for c in CONVERSATIONS]
    chatml = [[render(compile_template(CHATML), c, False), render(compile_template(CHATML), c, True)] for c in CONVERSATIONS]
    snippets = [{"source": s, "text": render(compile_template(s), CONVERSATIONS[1], True)} for s in SNIPPETS]
    for source in BROKEN:
        try:
            compile_template(source).render()
            raise SystemExit(f"Jinja takes {source!r}")
        except Exception as error:
            assert not isinstance(error, SystemExit)
    return {"conversations": CONVERSATIONS, "real": real, "chatml": {"source": CHATML, "texts": chatml}, "snippets": snippets, "broken": BROKEN}


def main():
    corpus_path, templates = map(pathlib.Path, sys.argv[1:3])
    corpus = corpus_path.read_text(encoding="utf-8")[:150_000]
    lines = corpus.splitlines() + UNICODE_LINES * 12
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir()
    texts = strings()
    dump(OUT / "strings.json", texts)
    for name, tokenizer in tokenizers_of(byte_level_base(lines), sentencepiece_style_base(lines)):
        write_tokenizer_json(name, tokenizer, texts)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        write_sentencepiece("sentencepiece", file.name, texts, byte_fallback=True, remove_extra_whitespaces=False)
        write_sentencepiece("sentencepiece_squeezed", file.name, texts, byte_fallback=False, user_defined_symbols=["word", "<think>"])
    dump(OUT / "chat_templates.json", template_goldens(templates))


if __name__ == "__main__":
    main()
