# SPDX-License-Identifier: Apache-2.0
"""A second reader of data sets that `beringia pack` made (src/data/data.h has the format), and of their order."""
import json
import os

import numpy as np
import order_v1

HEAD = 64  # bytes of a shard before its tokens


class Dataset:
    def __init__(self, directory):
        with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as f:
            self.manifest = m = json.load(f)
        self.directory, self.seq_len, self.vocab = directory, m["seq_len"], m["vocab"]
        self.train, self.heldout = self.read(m["train"]), self.read(m["heldout"])

    def read(self, half):
        """[samples, T+1]: neighbours within a shard share one token."""
        rows, kind = [np.zeros((0, self.seq_len + 1), np.int64)], "<u2" if self.manifest["token_bytes"] == 2 else "<u4"
        for shard in half["shards"]:
            ids = np.fromfile(os.path.join(self.directory, shard["file"]), kind, offset=HEAD).astype(np.int64)
            at = np.arange(shard["samples"])[:, None] * self.seq_len + np.arange(self.seq_len + 1)
            rows.append(ids[at])
        return np.concatenate(rows)

    def at(self, position):
        """The training sample that stands at a position, counted on over the epochs."""
        epoch, place = divmod(position, len(self.train))
        order = self.manifest["order"]
        return self.train[order_v1.sample(order["seed"], epoch, len(self.train), order["block"], order["group"], place)]
