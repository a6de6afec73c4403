// A plan as elements: memory, work, and every layer.

import {facts, h, table} from './dom.js';
import {bytes, count, number} from './format.js';

function shape(dimensions) {
  return dimensions.map(count).join(' × ') || 'scalar';
}

/** What is odd about a job that may be submitted all the same, a notice each. */
export function warningParts(warnings) {
  return (warnings || []).map((text) => h('p', {class: 'notice warning'}, `Warning: ${text}`));
}

/** The elements, one below the other. */
export function planParts(plan) {
  const parameters = Number(plan.parameter_bytes);
  const activations = Number(plan.activation_bytes);
  const parts = [facts([
    ['Parameters', count(plan.parameters)],
    ['Memory of a step', bytes(parameters + activations)],
    ['Parameters, gradients, optimizer', bytes(parameters)],
    ['Activations, workspace', bytes(activations)],
    ['Input of a sample', shape(plan.input_shape)],
    ['Work of a step', plan.step_flops === undefined ? '' : `${number(Number(plan.step_flops) / 1e9, 3)} GFLOP`],
  ])];
  if (plan.phases.length > 1) {
    parts.push(
        h('h3', {}, 'Phases'),
        table(
            'Phases', ['Phase', {name: 'Parameters', class: 'n'}, {name: 'Activations', class: 'n'}],
            plan.phases.map((phase) => [phase.name, count(phase.parameters), bytes(phase.activation_bytes)])));
  }
  parts.push(
      h('h3', {}, 'Layers'),
      table(
          'Layers', ['Layer', 'Kind', 'Computes in', 'Output', {name: 'Parameters', class: 'n'}],
          plan.layers.map(
              (layer) => [layer.name, layer.kind, layer.dtype, shape(layer.output_shape), count(layer.parameters)])));
  return parts;
}
