// What the browser keeps: nothing depends on it, since storage may be forbidden.

export function load(storage, key) {
  try {
    return window[storage].getItem(key);
  } catch (error) {
    return null;
  }
}

/** null removes it. */
export function save(storage, key, value) {
  try {
    if (value === null) {
      window[storage].removeItem(key);
    } else {
      window[storage].setItem(key, value);
    }
  } catch (error) {
    // Kept for as long as the page is open, by who asked.
  }
}
