// Asks in which form a checkpoint's model is wanted, and saves it.

import {exportModel, part} from './api.js';
import {askFor} from './ask_dialog.js';
import {h} from './dom.js';

const FORMS = [
  {text: 'ONNX', form: 'onnx'},
  {text: 'safetensors, FP32', form: 'safetensors', dtype: 'fp32'},
  {text: 'safetensors, FP16', form: 'safetensors', dtype: 'fp16'},
  {text: 'safetensors, BF16', form: 'safetensors', dtype: 'bf16'},
];

function choice(names) {
  return h('select', {}, names.map((text, i) => h('option', {value: i}, text)));
}

function save({name, blob}) {
  const href = URL.createObjectURL(blob);
  h('a', {href, download: name}).click();
  // The browser has begun to read it by then; until it is revoked the page holds it.
  setTimeout(() => URL.revokeObjectURL(href), 60000);
}

/** The dialog, opened once what the job has to choose from is known; null where it is not `wanted()` any more by then. */
export async function askForModel(jobId, checkpoint, wanted) {
  const {model, optimizer, phases = []} = await part(jobId, 'spec');
  if (!wanted()) return null;
  const networks = (model.networks || []).map(({name}) => name);
  const form = {
    name: 'form',
    label: 'Form',
    input: choice(FORMS.map(({text}) => text)),
    hint: 'ONNX is a graph for inference with its weights in FP32; safetensors the weights under PyTorch\u2019s names.'
  };
  // The last stands for none.
  const network = {name: 'network', label: 'Network', input: choice([...networks, 'All, as safetensors'])};
  const ema = {
    name: 'ema',
    label: 'The running average of the weights (EMA)',
    input: h('input', {type: 'checkbox'}),
  };
  const averages = [optimizer, ...phases.map((phase) => phase.optimizer)].some((one) => one && one.ema);
  return askFor({
    title: `Model of ${checkpoint}`,
    fields: [form, ...(networks.length > 0 ? [network] : []), ...(averages ? [ema] : [])],
    verb: 'Export',
    action: async (chosen, left) => {
      const request = {...FORMS[chosen.form], network: networks[chosen.network], ema: chosen.ema};
      const model = await exportModel(jobId, checkpoint, request, left);
      if (!left.aborted) save(model);
    }
  });
}
