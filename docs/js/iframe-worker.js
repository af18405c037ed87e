/* The search runs in a worker, and browsers start none for a page that was opened from disk: there, a frame does its work. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, document.baseURI).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach(data => this.postMessage(data));
      };
      inside.document.body.appendChild(script);
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      if (this.waiting) this.waiting.push(data);
      else inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
    terminate() { this.frame.remove(); }
  };
}
