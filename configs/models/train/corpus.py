"""Texts, splits and vocabularies for the two demonstration models.

Both corpora come from Debian packages, so that anyone can get the same bytes
without an account or a download link that rots:

* the King James Bible (package bible-kjv-text, read with bible-kjv's `bible`),
  4.2 MB of one consistent style. A few million parameters cannot learn all of
  English in an hour on one core, but they can learn one book's English;
* WordNet 3.0 (package wordnet-base, /usr/share/wordnet), whose synsets give
  pairs of texts that mean the same thing: words, their gloss, an example.

What is held out is decided by a hash or a count of the unit's own name, never
by a random generator, so that every script agrees on it without passing state.
"""

import collections
import heapq
import re
import subprocess
import unicodedata
import zlib

# --- King James Bible ------------------------------------------------------


def kjv_chapters(command="bible"):
    """Every chapter as (name, [verse, ...]), in order."""
    out = subprocess.run([command, "-f", "gen1:1-rev22:21"], check=True,
                         capture_output=True, text=True).stdout
    chapters = collections.OrderedDict()
    for line in out.splitlines():
        match = re.match(r"(\S+?)(\d+):\d+ (.*)", line)
        if match:
            name = match.group(1) + match.group(2)
            chapters.setdefault(name, []).append(match.group(3).strip())
    return list(chapters.items())


def kjv_split(chapters):
    """Every 20th chapter is held out: whole chapters, so that no held-out
    sentence has its neighbours in training, and spread over all the books."""
    train = [c for i, c in enumerate(chapters) if i % 20 != 10]
    held = [c for i, c in enumerate(chapters) if i % 20 == 10]
    return train, held


# --- WordNet ---------------------------------------------------------------

Synset = collections.namedtuple("Synset", "key lemmas gloss examples hypernyms held")


def wordnet(folder="/usr/share/wordnet"):
    """All synsets by key. One synset in twenty is held out, by a checksum of
    its key; training never sees its words, its gloss or its examples as a pair."""
    synsets = {}
    for name in ("noun", "verb", "adj", "adv"):
        with open(f"{folder}/data.{name}", encoding="latin-1") as file:
            for line in file:
                if line.startswith("  "):  # the licence
                    continue
                head, _, text = line.partition("|")
                f = head.split()
                pos = "a" if f[2] == "s" else f[2]
                words = int(f[3], 16)
                lemmas = [re.sub(r"\((a|p|ip)\)$", "", f[4 + 2 * i]).replace("_", " ")
                          for i in range(words)]
                at = 4 + 2 * words
                pointers = [f[at + 1 + 4 * i: at + 5 + 4 * i] for i in range(int(f[at]))]
                hypernyms = [p[2] + p[1] for p in pointers if p[0] in ("@", "@i")]
                examples = re.findall(r'"([^"]+)"', text)
                gloss = re.sub(r'[;:,]?\s*"[^"]*"[^;"]*', "", text).strip(" ;\n")
                key = pos + f[0]
                held = zlib.crc32(key.encode()) % 20 == 0
                if gloss:
                    synsets[key] = Synset(key, lemmas, gloss, examples, hypernyms, held)
    return synsets


# --- merges, for both tokenisers ------------------------------------------


def learn_merges(words, count):
    """Byte-pair merges over {tuple of symbols: frequency}.

    The plain algorithm recounts all pairs for every merge; this one keeps the
    counts and an index from pair to words, and a heap whose stale entries are
    skipped, which makes two thousand merges a matter of seconds."""
    words = [[list(symbols), freq] for symbols, freq in sorted(words.items())]
    counts, where = collections.Counter(), collections.defaultdict(set)
    for i, (symbols, freq) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            counts[pair] += freq
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(merges) < count:
        n, pair = heapq.heappop(heap)
        if counts[pair] != -n or n == 0:
            continue
        merges.append(pair)
        joined, touched = join(*pair), set()
        for i in where.pop(pair):
            symbols, freq = words[i]
            for p in zip(symbols, symbols[1:]):
                counts[p] -= freq
                touched.add(p)
            k, new = 0, []
            while k < len(symbols):
                if k + 1 < len(symbols) and (symbols[k], symbols[k + 1]) == pair:
                    new.append(joined)
                    k += 2
                else:
                    new.append(symbols[k])
                    k += 1
            words[i][0] = new
            for p in zip(new, new[1:]):
                counts[p] += freq
                where[p].add(i)
                touched.add(p)
        for p in touched:
            if counts[p] > 0:
                heapq.heappush(heap, (-counts[p], p))
    return merges


def join(a, b):
    """Glue two pieces; a WordPiece continuation loses its ## inside a piece."""
    return a + (b[2:] if b.startswith("##") and len(b) > 2 else b)


# --- byte-level BPE (the language model) -----------------------------------

# llama.cpp's "gpt-2" split, with Python's spelling of \p{L} and \p{N}.
GPT2_SPLIT = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's map from a byte to a printable character."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in keep]
    table = {b: chr(b) for b in keep}
    table.update({b: chr(256 + i) for i, b in enumerate(other)})
    return table


class BPE:
    """tokens 0 and 1 are <s> and </s>, then the 256 bytes, then the merges.

    All 256 bytes are there on purpose: llama.cpp throws, and a C++ exception
    ends the whole process, when a text holds a byte that has no token."""

    def __init__(self, merges):
        self.merges = [tuple(m) for m in merges]
        self.alphabet = byte_alphabet()
        self.tokens = ["<s>", "</s>"] + [self.alphabet[b] for b in range(256)]
        self.tokens += [a + b for a, b in self.merges]
        self.id = {t: i for i, t in enumerate(self.tokens)}
        self.rank = {m: i for i, m in enumerate(self.merges)}
        self.byte = {c: b for b, c in self.alphabet.items()}
        self.cache = {}

    @staticmethod
    def learn(text, size):
        alphabet = byte_alphabet()
        words = collections.Counter(GPT2_SPLIT.findall(text))
        words = {tuple(alphabet[b] for b in w.encode()): n for w, n in words.items()}
        return BPE(learn_merges(words, size - 258))

    def encode(self, text):
        ids = []
        for word in GPT2_SPLIT.findall(text):
            if word not in self.cache:
                parts = [self.alphabet[b] for b in word.encode()]
                while len(parts) > 1:
                    ranks = [self.rank.get(p, 1 << 30) for p in zip(parts, parts[1:])]
                    best = min(ranks)
                    if best == 1 << 30:
                        break
                    at = ranks.index(best)
                    parts[at:at + 2] = [parts[at] + parts[at + 1]]
                self.cache[word] = [self.id[p] for p in parts]
            ids += self.cache[word]
        return ids

    def decode(self, ids):
        text = "".join(self.tokens[i] for i in ids if i > 1)
        return bytes(self.byte[c] for c in text).decode("utf-8", "replace")


# --- WordPiece (the sentence encoder) --------------------------------------


def bert_words(text):
    """BERT's basic tokeniser: lower case, no accents, punctuation apart."""
    text = unicodedata.normalize("NFD", text.lower())
    words, word = [], ""
    for c in text:
        kind = unicodedata.category(c)
        if kind == "Mn":
            continue
        alone = kind[0] == "P" or (ord(c) < 128 and kind[0] == "S") or 0x4E00 <= ord(c) <= 0x9FFF
        if alone or c.isspace():
            if word:
                words.append(word)
            word = ""
            if alone:
                words.append(c)
        elif kind[0] != "C":
            word += c
    return words + [word] if word else words


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class WordPiece:
    def __init__(self, tokens):
        self.tokens = list(tokens)
        self.id = {t: i for i, t in enumerate(self.tokens)}
        self.cache = {}

    @staticmethod
    def learn(texts, size):
        """BPE merges decide which pieces exist; at use time the longest piece
        wins, as in BERT. Words seen once are left out of the count."""
        words = collections.Counter(w for t in texts for w in bert_words(t))
        ascii_chars = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
        chars = collections.Counter(c for w, n in words.items() for c in w for _ in range(min(n, 50)))
        alphabet = sorted(set(ascii_chars) | {c for c, n in chars.items() if n >= 50})
        tokens = SPECIAL + alphabet + ["##" + c for c in alphabet if c.isalnum()]
        split = {(w[0], *("##" + c for c in w[1:])): n for w, n in words.items() if n > 1}
        seen = set(tokens)
        for a, b in learn_merges(split, 2 * size):
            piece = join(a, b)
            if piece not in seen:
                seen.add(piece)
                tokens.append(piece)
            if len(tokens) == size:
                break
        return WordPiece(tokens)

    def word(self, word):
        ids, at = [], 0
        while at < len(word):
            for end in range(len(word), at, -1):
                piece = ("##" if at else "") + word[at:end]
                if piece in self.id:
                    ids.append(self.id[piece])
                    at = end
                    break
            else:
                return [1]
        return ids

    def encode(self, text):
        ids = []
        for word in bert_words(text):
            if word not in self.cache:
                self.cache[word] = self.word(word)
            ids += self.cache[word]
        return ids
