"use strict";
// Airflow's frame may not navigate its parent. So links to pages of Airflow are followed in the parent's document.
if (window.parent !== window) {
  document.querySelectorAll("a[target=_parent]").forEach((link) => {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const copy = window.parent.document.createElement("a");
      copy.href = link.href;
      copy.click();
    });
  });
}
