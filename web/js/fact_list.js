// A list of names and values that is changed in place, so that what is selected in it or has the focus stays so.

import {h, setText} from './dom.js';

export class FactList {
  /**
   * `pairs`: {name, text(item), kind, inner} each: a pair's text, where it has none the pair is not shown; its class;
   * and the element within the value that takes the text, if any.
   */
  constructor(pairs) {
    this.pairs = pairs.map(({name, text, kind, inner}) => {
      const value = h('dd', {}, inner);
      return {text, target: inner || value, element: h('div', {class: kind, hidden: true}, h('dt', {}, name), value)};
    });
    this.element = h('dl', {class: 'facts'}, this.pairs.map(({element}) => element));
  }

  update(item) {
    for (const {text, target, element} of this.pairs) {
      setText(target, text(item));
      element.hidden = target.textContent === '';
    }
  }
}
