// Sign-in, where the server has users. The session is a cookie that scripts cannot read.

import { byId, say } from "./dom.js";

export class SignInNeeded extends Error {}

async function post(path, content) {
  const answer = await fetch(path, {
    method: "POST", credentials: "same-origin", cache: "no-store",
    headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
}

export function showSignIn(needed) {
  const form = byId("sign-in");
  if (form.hidden === !needed) return;
  form.hidden = !needed;
  if (needed) {
    byId("main").hidden = true;
    byId("sign-out").hidden = true;
    byId("sign-in-user").focus();
  }
}

/** `done` is called after somebody has signed in or out. */
export function offerSignIn(done) {
  byId("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [user, password] = [byId("sign-in-user"), byId("sign-in-password")];
    say(byId("sign-in-note"), "");
    try {
      await post("sign-in", { user: user.value, password: password.value });
      password.value = "";
      await done();
    } catch (problem) {
      say(byId("sign-in-note"), problem.message);
    }
  });
  byId("sign-out").addEventListener("click", async () => {
    await post("sign-out", {});
    await done();
  });
}
