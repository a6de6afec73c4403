// Sets the chosen colours before anything is painted. Not a module: modules run too late for that.
'use strict';
(function() {
try {
  const theme = localStorage.getItem('ampd.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch (error) {
  // Storage may be forbidden; the system's colours hold then.
}
})();
