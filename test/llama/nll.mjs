// SPDX-License-Identifier: Apache-2.0
// node nll.mjs JOB.json: what llama.cpp makes of a GGUF file. The job has model (path), rows (lists of token ids) and
// texts; the answer on standard output has nll (the mean over all predictions of all rows, in nats, computed from the
// probabilities that llama.cpp gives after each id) and tokens (the ids of each text).
import fs from 'node:fs';
import {getLlama} from 'node-llama-cpp';

const job = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const llama = await getLlama({gpu: false, build: 'never', logLevel: 'error'});
const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0});
const longest = Math.max(2, ...job.rows.map((r) => r.length));
const context = await model.createContext({
    contextSize: longest + 1, batchSize: longest + 1, threads: 2, flashAttention: false,
    experimentalKvCacheKeyType: 'F32', experimentalKvCacheValueType: 'F32'
});
const sequence = context.getSequence();
const all = {temperature: 1, topK: 0, topP: 1, minP: 0};
let sum = 0, count = 0;
for (const row of job.rows) {
    await sequence.clearHistory();
    const steps = row.map((id, i) => i + 1 < row.length
        ? [id, {generateNext: {probabilities: true, options: all}}] : id);
    const results = await sequence.controlledEvaluate(steps);
    for (let i = 0; i + 1 < row.length; i++) {
        sum -= Math.log(results[i].next.probabilities.get(row[i + 1]));
        count++;
    }
}
console.log(JSON.stringify({nll: count > 0 ? sum / count : null, count, tokens: job.texts.map((t) => model.tokenize(t, false))}));
process.exit(0);
