package sinks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// signingPrefix begins every signing secret of Standard Webhooks (https://www.standardwebhooks.com).
const signingPrefix = "whsec_"

// signingKey returns the key in a signing secret, which is whsec_ and 24 to 64 bytes in base64. Its errors do not show
// the secret.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, signingPrefix)
	if !ok {
		return nil, says("does not begin with " + signingPrefix)
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, says("is not " + signingPrefix + " and base64") // err would show where and what
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, says("holds %d bytes; expected 24 to 64", len(key))
	}
	return key, nil
}

// sign returns the value of webhook-signature for body, with one signature per key. A receiver needs only one that it
// can verify, so a key can be replaced without an interruption.
func sign(keys [][]byte, id string, at time.Time, body []byte) string {
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}
