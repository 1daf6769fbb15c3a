# SPDX-License-Identifier: Apache-2.0
"""Texts to compare tokenizers on: chosen ones, and random ones that are made of what is difficult."""
import random

PIECES = """the|Hello|world|don|n't|'s|'S|'LL|'ve|'RE|'|\u017f|'\u017f|123|7|1234567|.|,|!|...|--|\u2014|\u201c|\u201d
\u00e9|e\u0301|a\u0323\u0302|a\u0302\u0323|\u0302\u0323|\u00f1|\u03a9|\u212b|\u2126|\ufb01|\u6f22\u5b57|\u4e2d|\u3072\u3089|\u30ab\u30bf
\ud55c\uad6d\uc5b4|\u1112\u1161\u11ab|\u1100\u1161|\u043f\u0440\u0438|\u0639\u0631\u0628|\u0939\u093f\u0928\u094d|\u0e44\u0e17\u0e22|\u2460|\u00b2
\u00bd|\u0663|\u2167|\u0967\u0968|$|\u20ac|+|=|<|>|_|#|\\|/|%|\u01c5|\u02b0|\u00aa|\u0344|\u0f73|\u1e9b\u0323|\uf900|\u0958
\u09c7\u09be|if (x == 0) {|return|iPhone|aaaaaaaaaaaa|=======|_x|x_|<|im_start|>|<think|</s>|<|endof|text|>""".replace(
    "\n", "|").split("|") + [
    " ", "  ", "    ", "\n", "\r\n", "\n\n", "\t", "\r", "\u0085", "\u00a0", "\u180e", "\ufeff", "\u200b", "\u3000",
    "\u2028", "\u1680", "\x0b", "\x0c", "\x1c", "\x1f", "\x00", "\x7f", "\U0001f600", "\U0001f468\u200d\U0001f469",
    "\U0001f1e9\U0001f1ea", "\U0001d165", "\U0010ffff", "\U000e0001", "|"]

CHOSEN = ["", " ", "a", "Hello", " Hello", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
          "I'm we'll they'd CAN'T Don't o'clock 'tis", "x = 3.14159; y[10] += 2**8", "  leading", "trailing  ",
          "two\n\nparagraphs\n", "tabs\tand\r\nlines\r", "\n \n \n", " \n x", "a  b   c    d", "1234567890",
          "\u4e2d\u6587\u6d4b\u8bd5", "na\u00efve caf\u00e9", "nai\u0308ve cafe\u0301", "\u1100\u1161\u11a8 \uac01",
          "\u0041\u030a \u212b \u00c5", "q\u0323\u0307 q\u0307\u0323", "\u0958 \u0915\u093c", "<|endoftext|>",
          "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|im_start|>user\nhi<|im_end|>\n",
          "<|im_start|", "<think>\n\n</think>\n\n", "</s>", "<|begin_of_text|>x<|end_of_text|>", "<|eot_id|>",
          "<tool_call>{\"a\": 1}</tool_call>", "e\u0301<|im_end|>\u0301e", "a" * 300, " " * 70 + "x", "-" * 120,
          "\u00e9" * 90, "ab" * 100, "\u0301" * 40, "a" + "\u0301\u0316" * 20, "\ufeffBOM", "a\u0085b", "a\u180eb",
          "don\u2019t", "it\u02bcs", "\u017fharp '\u017f '\u212a", "@user #tag http://a.b/c?d=e&f=g%20h",
          "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass\n", "{\"k\": [1, 2.5e-3, null]}\n", "\x00\x01\x7f",
          "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u0661\u0662\u0663 \u2160\u2161 \u00bd\u00b2",
          "Stra\u00dfe STRASSE \u0130stanbul", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
          "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "Ti\u1ebfng Vi\u1ec7t", "Tie\u0302\u0301ng Vie\u0323\u0302t"]

# Marks that were given their class after Unicode 10: the Rust library's tables are older than ours.
YOUNG = {0x09FE, 0x0A51, 0x0EBA, 0x0C04, 0x0C3C, 0x0D3B, 0x0D3C}


def old_enough(c):
    """Assigned by Unicode 10, as far as form C is concerned; no surrogate."""
    import unicodedata
    if c in YOUNG or 0xD800 <= c <= 0xDFFF:
        return False
    if unicodedata.category(chr(c)) == "Cn":
        return False
    return unicodedata.combining(chr(c)) == 0 or unicodedata.ucd_3_2_0.category(chr(c)) != "Cn" or c < 0x600


def one(r, added):
    out = []
    for _ in range(r.randint(1, 12)):
        k = r.random()
        if k < 0.68:
            out.append(r.choice(PIECES))
        elif k < 0.76 and added:
            out.append(r.choice(added))
        elif k < 0.85:
            out.append(chr(r.randint(32, 126)))
        else:
            c = r.randrange(0x600) if k < 0.93 else r.randrange(0x3000)
            out.append(chr(c) if old_enough(c) else "\u00e5")
        if r.random() < 0.4:
            out.append(" ")
    return "".join(out)


def random_texts(count, seed, added=()):
    r = random.Random(seed)
    return [one(r, list(added)) for _ in range(count)]


def ill_formed(count, seed):
    """Bytes that are no UTF-8: cut, overlong, surrogates, beyond U+10FFFF, stray, among good text."""
    r = random.Random(seed)
    bad = [b"\xff", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80",
           b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xfe", b"\xe4\xb8\xc3\xa9", b"\xf0\x9f\x98a", b"\xf8\x88\x80\x80\x80"]
    good = [b"a", b"the ", b" ", b"\n", "\u00e9".encode(), "e\u0301".encode(), "\u4e2d".encode(), b"<|im_end|>", b"7"]
    return [b"".join(r.choice(bad if r.random() < 0.5 else good) for _ in range(r.randint(1, 9))) for _ in range(count)]
