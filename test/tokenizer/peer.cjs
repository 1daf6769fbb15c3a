// SPDX-License-Identifier: Apache-2.0
// node peer.cjs MODE TOKENIZER FILE: Hugging Face's own tokenizers library (Rust), as packed for npm.
//   ids    FILE holds {"text": ...} a line: the ids of each, a line
//   speed  one line instead: the CPU seconds of one pass over all texts, and their bytes
const fs = require('fs');
const { Tokenizer } = require('@anush008/tokenizers');
const [mode, tokenizer, file] = process.argv.slice(2);
const t = Tokenizer.fromString(fs.readFileSync(tokenizer, 'utf8'));
const texts = fs.readFileSync(file, 'utf8').split('\n').filter((x) => x).map((x) => JSON.parse(x).text);
(async () => {
    const out = [];
    const began = process.cpuUsage();
    for (const x of texts) {
        const e = await t.encode(x, null, { addSpecialTokens: false });
        if (mode === 'ids') out.push(e.getIds().join(' '));
    }
    const used = process.cpuUsage(began);
    const bytes = texts.reduce((n, x) => n + Buffer.byteLength(x), 0);
    process.stdout.write(mode === 'ids' ? out.join('\n') + '\n' : `${(used.user + used.system) / 1e6} ${bytes}\n`);
})();
