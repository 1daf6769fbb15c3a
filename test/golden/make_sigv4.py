#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test/golden/sigv4/queries.txt: presigned queries as another implementation makes them: Python's hmac and urllib, from the
description in "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)". One case a line, separated by tabs:
method, host, path, region, id, secret, session, unix seconds, expires, further parameters, the query.

    test/golden/make_sigv4.py > test/golden/sigv4/queries.txt
"""
import datetime
import hashlib
import hmac
import random
import urllib.parse


def keyed(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def query(method, host, path, region, key, secret, session, at, expires, more):
    date = datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    pairs = [("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"{key}/{scope}"), ("X-Amz-Date", date),
             ("X-Amz-Expires", str(expires)), ("X-Amz-SignedHeaders", "host"), *more]
    if session:
        pairs.append(("X-Amz-Security-Token", session))
    text = "&".join(f"{urllib.parse.quote(k, '-._~')}={urllib.parse.quote(v, '-._~')}" for k, v in sorted(pairs))
    canonical = "\n".join([method, path, text, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    k = ("AWS4" + secret).encode()
    for word in (date[:8], region, "s3", "aws4_request"):
        k = keyed(k, word)
    return f"{text}&X-Amz-Signature={hmac.new(k, to_sign.encode(), hashlib.sha256).hexdigest()}"


def main():
    rng = random.Random(20261130)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    word = lambda n, more="": "".join(rng.choice(letters + more) for _ in range(n))  # noqa: E731
    cases = [("GET", "examplebucket.s3.amazonaws.com", "/test.txt", "us-east-1", "AKIAIOSFODNN7EXAMPLE",
              "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", 1369353600, 86400, [])]
    for i in range(24):
        more = [("partNumber", str(rng.randrange(1, 10001))), ("uploadId", word(40, "+/=-_.~%"))] if i % 2 else []
        cases.append((rng.choice(["GET", "PUT"]), f"{word(6).lower()}.example.org{rng.choice(['', ':8080'])}", f"/{word(5).lower()}/{word(8)}/{word(9)}",
                      rng.choice(["us-east-1", "eu-north-1"]), word(20), word(40, "+/"), word(100, "+/=") if i % 3 == 0 else "",
                      rng.randrange(0, 4102444800), rng.randrange(1, 604801), more))
    for c in cases:
        more = "&".join(f"{k}={v}" for k, v in c[9])
        print("\t".join([*map(str, c[:9]), more, query(*c)]))


if __name__ == "__main__":
    main()
