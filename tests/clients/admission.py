"""Judges requests as the API server does by a ValidatingAdmissionPolicy: its specification and the requests come as JSON on
standard input, and what becomes of each goes out as JSON: `passed over`, `allowed`, or what it is refused with."""

import json
import sys

import celpy
from celpy import celtypes, json_to_cel

given = json.load(sys.stdin)
environment = celpy.Environment()


def program(expression):
    return environment.program(environment.compile(expression))


policy = given["policy"]
conditions = [program(condition["expression"]) for condition in policy["matchConditions"]]
variables = [(variable["name"], program(variable["expression"])) for variable in policy["variables"]]
validations = [
    (program(rule["expression"]), rule.get("message"), program(rule.get("messageExpression", "''")))
    for rule in policy["validations"]
]


def judge(request):
    known = {name: json_to_cel(request[name]) for name in ("object", "oldObject", "request")}
    if not all(condition.evaluate(known) for condition in conditions):
        return "passed over"
    # Those that come later use those before.
    known["variables"] = celtypes.MapType()
    for name, expression in variables:
        known["variables"][celtypes.StringType(name)] = expression.evaluate(known)
    for expression, message, message_expression in validations:
        if not expression.evaluate(known):
            return message or str(message_expression.evaluate(known))
    return "allowed"


outcomes = []
for request in given["requests"]:
    try:
        outcomes.append(judge(request))
    except celpy.CELEvalError as error:
        # failurePolicy: Fail
        outcomes.append(f"error: {error}")
json.dump(outcomes, sys.stdout)
