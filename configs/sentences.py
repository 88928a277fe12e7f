"""Writes sentences.txt: 12,000 verses of the King James Bible (public domain;
Debian packages bible-kjv and bible-kjv-text) of 30 to 120 letters, spread
evenly over the book and no two alike. The demo embeds them, sends them as load
and trains on them.

    python3 configs/sentences.py > configs/sentences.txt
"""

import re
import subprocess

out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
verses = [re.sub(r"^\S+ ", "", line).strip() for line in out.splitlines()]
fit = list(dict.fromkeys(v for v in verses if 30 <= len(v) <= 120))
print("\n".join(fit[i * len(fit) // 12000] for i in range(12000)))
