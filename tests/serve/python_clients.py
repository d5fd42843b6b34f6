#!/usr/bin/env python3
"""The main calls of the clients of OpenAI and Anthropic, unmodified: python_clients.py URL [--grammars].

The server has the key `secret`, the demo pair as `demo`, and a chat template with tools. With --grammars it has
llguidance, too."""
import json
import sys

import anthropic
import openai

URL, HAS_GRAMMARS = sys.argv[1], "--grammars" in sys.argv
TOOL = {"type": "object", "properties": {"what": {"enum": ["ball", "cake"]}}, "required": ["what"],
        "additionalProperties": False}
ASK = [{"role": "user", "content": "Tom had a red ball."}]


def check(holds, what):
    if not holds:
        sys.exit(f"{what}: not as it should be")


def fails(call, kind, what):
    try:
        call()
    except kind as error:
        return error
    sys.exit(f"{what}: no {kind.__name__}")


def openai_calls():
    client = openai.OpenAI(base_url=URL + "/v1", api_key="secret", max_retries=0)
    check([m.id for m in client.models.list().data] == ["demo"], "models.list")
    check(client.models.retrieve("demo").id == "demo", "models.retrieve")
    fails(lambda: client.models.retrieve("other"), openai.NotFoundError, "an unknown model")
    fails(lambda: openai.OpenAI(base_url=URL + "/v1", api_key="x", max_retries=0).models.list(),
          openai.AuthenticationError, "a wrong key")
    same = {"model": "demo", "max_tokens": 12, "temperature": 0}
    text = client.completions.create(prompt="Once upon a time", **same).choices[0].text
    streamed = client.completions.create(prompt="Once upon a time", stream=True, **same)
    check("".join(c.choices[0].text for c in streamed) == text and text, "completions")
    whole = client.chat.completions.create(messages=ASK, n=2, logprobs=True, top_logprobs=2, **same)
    check(len(whole.choices) == 2 and len(whole.choices[0].logprobs.content[0].top_logprobs) == 2, "chat")
    events = list(client.chat.completions.create(messages=ASK, stream=True, stream_options={"include_usage": True},
                                                 **same))
    said = "".join(c.choices[0].delta.content or "" for c in events if c.choices)
    check(said == whole.choices[0].message.content, "a streamed chat")
    check(events[-1].usage.completion_tokens == 12, "usage of a stream")
    form = {"structured_outputs": {"choice": ["a cake", "a ball"]}}
    with client.chat.completions.stream(model="demo", messages=ASK, max_tokens=12, extra_body=form) as stream:
        check(stream.get_final_completion().choices[0].message.content in ("a cake", "a ball"), "the stream helper")
    answer = client.responses.create(model="demo", input="Tom had a red ball.", max_output_tokens=12, temperature=0)
    check(answer.output_text == said, "responses")
    with client.responses.stream(model="demo", input="Tom had a red ball.", max_output_tokens=12,
                                 temperature=0) as stream:
        events = list(stream)
    check("".join(e.delta for e in events if e.type == "response.output_text.delta") == said, "streamed responses")
    check(events[-1].response.incomplete_details.reason == "max_output_tokens", "why a response ended")
    error = fails(lambda: client.completions.create(prompt="a", model="demo", temperature=-1),
                  openai.BadRequestError, "a temperature below 0")
    check(error.param == "temperature", "the field of an error")
    if not HAS_GRAMMARS:
        return
    tools = [{"type": "function", "function": {"name": "get", "parameters": TOOL}}]
    asked = dict(model="demo", messages=ASK, tools=tools, tool_choice="required", max_tokens=100, seed=1,
                 parallel_tool_calls=False)
    call = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]
    check(json.loads(call.function.arguments)["what"] in ("ball", "cake"), "a call")
    with client.chat.completions.stream(**asked) as stream:
        again = stream.get_final_completion().choices[0].message.tool_calls[0]
    check(again.function.arguments == call.function.arguments, "a streamed call")
    schema = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": TOOL}}
    form = client.chat.completions.create(model="demo", messages=ASK, response_format=schema, max_tokens=60)
    check(json.loads(form.choices[0].message.content)["what"] in ("ball", "cake"), "a form")


def anthropic_calls():
    client = anthropic.Anthropic(base_url=URL, api_key="secret", max_retries=0)
    same = {"model": "demo", "max_tokens": 12, "temperature": 0, "messages": ASK, "system": "Once "}
    if "temperature" not in client.messages.create.__code__.co_varnames:  # newer ones leave it to the model
        same["extra_body"] = {"temperature": same.pop("temperature")}
    whole = client.messages.create(**same)
    check(whole.content[0].type == "text" and whole.stop_reason == "max_tokens", "messages")
    with client.messages.stream(**same) as stream:
        check("".join(stream.text_stream) == whole.content[0].text, "streamed messages")
        final = stream.get_final_message()
    check(final.usage.output_tokens == 12, "usage of a stream")
    counted = client.messages.count_tokens(model="demo", messages=ASK, system="Once ")
    sent = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    check(counted.input_tokens == sent, "count_tokens")
    tools = [{"name": "get", "description": "gets it", "input_schema": TOOL}]
    more = client.messages.count_tokens(model="demo", messages=ASK, system="Once ", tools=tools)
    check(more.input_tokens > counted.input_tokens, "count_tokens with tools")
    check([m.id for m in client.models.list().data] == ["demo"], "models.list")
    check(client.models.retrieve("demo").id == "demo", "models.retrieve")
    fails(lambda: client.messages.create(model="demo", max_tokens=0, messages=ASK), anthropic.BadRequestError,
          "no tokens")
    fails(lambda: client.messages.create(model="other", max_tokens=1, messages=ASK), anthropic.NotFoundError,
          "an unknown model")
    talk = ASK + [{"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get",
                                                     "input": {"what": "cake"}}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a cake"},
                                               {"type": "text", "text": "Eat it."}]}]
    check(client.messages.create(model="demo", max_tokens=5, messages=talk, tools=tools).type == "message",
          "a result of a tool")
    if not HAS_GRAMMARS:
        return
    asked = dict(model="demo", messages=ASK, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=100,
                 extra_body={"seed": 1})
    used = client.messages.create(**asked)
    block = next(b for b in used.content if b.type == "tool_use")
    check(used.stop_reason == "tool_use" and block.input["what"] in ("ball", "cake"), "a tool's use")
    with client.messages.stream(**asked) as stream:
        again = stream.get_final_message()
    check(next(b for b in again.content if b.type == "tool_use").input == block.input, "a streamed use of a tool")


openai_calls()
anthropic_calls()
