// A card a device: what it is, how busy, how full, who holds it, what is wrong with it.

import {actOnDevice, identity} from './api.js';
import {askFor} from './ask_dialog.js';
import {fill, h, setText} from './dom.js';
import {bytes, number, percent} from './format.js';
import {Sparkline} from './sparkline.js';

const REMEMBERED = 60;

function meter(label) {
  const bar = h('div', {class: 'bar'}, h('i'));
  const value = h('span', {class: 'figure'});
  const element =
      h('div', {class: 'meter', role: 'meter', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '100'},
        h('span', {class: 'label'}, label), bar, value);
  return {
    element,
    set(share, text) {
      element.hidden = share === undefined;
      bar.firstChild.style.setProperty('width', `${(100 * Math.min(1, share || 0)).toFixed(1)}%`);
      element.setAttribute('aria-valuenow', Math.round(100 * (share || 0)));
      element.setAttribute('aria-valuetext', text);
      setText(value, text);
    }
  };
}

function gpuText(gpu) {
  if (!gpu) return '';
  const parts = [];
  if (gpu.temperature_celsius !== undefined) parts.push(`${number(gpu.temperature_celsius, 3)} °C`);
  if (gpu.power_watts !== undefined) parts.push(`${number(gpu.power_watts, 3)} W`);
  if (gpu.throttled) parts.push(`throttled: ${(gpu.throttle_reasons || []).join(', ')}`);
  return parts.join(' · ');
}

function askToDrain(id) {
  const reason = h('input', {type: 'text', maxlength: '200', required: true, autocomplete: 'off'});
  const stop = h('input', {type: 'checkbox'});
  askFor({
    title: `Drain ${id}?`,
    fields: [
      {
        name: 'reason',
        label: 'Why',
        input: reason,
        hint: 'No job starts on it until it is undrained; jobs that wait for it say why.'
      },
      {name: 'stop_jobs', label: 'Its jobs checkpoint and are queued again', input: stop}
    ],
    verb: 'Drain it',
    danger: true,
    action: (values) => actOnDevice(id, 'drain', values)
  });
}

class DeviceCard {
  constructor(id) {
    this.id = id;
    this.history = [];
    this.name = h('h3');
    this.detail = h('p', {class: 'detail'});
    this.use = meter('Utilisation');
    this.memory = meter('Memory');
    this.spark = new Sparkline('Utilisation since the page was opened', [0, 1]);
    this.jobs = h('p', {class: 'holders'});
    this.conditions = h('ul', {class: 'conditions'});
    this.problem = h('p', {class: 'problem', role: 'alert', hidden: true});
    this.verb = h('button', {type: 'button', hidden: true, onclick: () => this.change()});
    this.element =
        h('li', {class: 'card device', data: {device: id}}, h('header', {}, this.name, this.spark.element), this.detail,
          this.use.element, this.memory.element, this.jobs, this.conditions, this.problem, this.verb);
  }

  /** `nameOf(id)`: the name of a job, where it is known. */
  update(device, nameOf) {
    setText(this.name, device.name || device.id);
    const kind = device.kind === 'CPU' ? `${device.threads || '?'} threads` : gpuText(device.gpu);
    setText(this.detail, [device.id, kind].filter(Boolean).join(' · '));
    this.use.set(device.utilization, percent(device.utilization));
    this.history.push(Number(device.utilization));
    if (this.history.length > REMEMBERED) this.history.shift();
    this.spark.set(this.history);
    this.showMemory(device);
    this.showJobs(device, nameOf);
    const conditions = (device.conditions || []).map((condition) => `${condition.kind}: ${condition.message}`);
    fill(this.conditions, conditions.map((text) => h('li', {}, text)));
    this.drained = (device.conditions || []).some(({kind}) => kind === 'DRAINED');
    this.showVerb();
    this.element.classList.toggle('blocked', (device.conditions || []).some((condition) => condition.blocks_jobs));
  }

  showVerb() {
    this.verb.hidden = identity().role !== 'ADMIN';
    setText(this.verb, this.drained ? 'Undrain' : 'Drain…');
    this.verb.setAttribute('aria-label', `${this.drained ? 'Undrain' : 'Drain'} ${this.id}`);
  }

  /** The card follows with what the fleet tells. */
  async change() {
    if (!this.drained) {
      askToDrain(this.id);
      return;
    }
    this.problem.hidden = true;
    this.verb.disabled = true;
    try {
      await actOnDevice(this.id, 'undrain');
    } catch (error) {
      setText(this.problem, error.message);
      this.problem.hidden = false;
    }
    this.verb.disabled = false;
  }

  showMemory(device) {
    const total = Number(device.memory_total_bytes);
    const used = Number(device.memory_used_bytes);
    const known = total > 0 && Number.isFinite(used);
    this.memory.set(known ? used / total : undefined, known ? `${bytes(used)} of ${bytes(total)}` : '');
  }

  showJobs(device, nameOf) {
    const ids = device.job_ids && device.job_ids.length > 0 ? device.job_ids : [device.job_id].filter(Boolean);
    const names = ids.map((id) => nameOf(id) || id);
    const text = ids.concat(names).join(' ');
    if (text === this.held) return;
    this.held = text;
    fill(
        this.jobs, ids.length === 0 ? 'free' : ids.map((id, i) => h('a', {href: `#/jobs/${id}`, title: id}, names[i])));
  }
}

export class DeviceCards {
  constructor() {
    this.cards = new Map();
    this.element = h('ul', {class: 'cards', 'aria-label': 'Devices'});
    this.onIdentity = () => this.cards.forEach((card) => card.showVerb());
    addEventListener('identity', this.onIdentity);
  }

  update(devices, nameOf) {
    const there = new Set(devices.map((device) => device.id));
    for (const [id, card] of this.cards) {
      if (there.has(id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    for (const device of devices) {
      if (!this.cards.has(device.id)) {
        const card = new DeviceCard(device.id);
        this.cards.set(device.id, card);
        this.element.append(card.element);
      }
      this.cards.get(device.id).update(device, nameOf);
    }
  }

  close() {
    removeEventListener('identity', this.onIdentity);
  }
}
