#!/usr/bin/env bash
# Makes a CA, and a certificate and a private key for each server, for HTTPS between coordinators.
#   examples/tenants/certificates.sh FOLDER NAME=ADDRESS[,ADDRESS...]...
#   examples/tenants/certificates.sh certificates here=here.example.org,10.0.0.7 there=there.example.org
# ADDRESS: a host name or an IP address, as in the URLs of the server. FOLDER gets ca.crt, ca.key, NAME.crt and NAME.key. An
# existing CA is used again, so that the script also renews certificates: a coordinator reads the changed files itself. Keep
# ca.key away from the servers: it can make a certificate for every name.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,7s/^# //p' "$0" >&2
  exit 64
fi
command -v openssl >/dev/null || { echo "openssl is missing: apt install openssl" >&2; exit 69; }
folder=$1
shift
umask 077
mkdir -p "$folder"
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
if [ ! -e "$folder/ca.key" ]; then
  openssl req -x509 "${new_key[@]}" -keyout "$folder/ca.key" -out "$folder/ca.crt" -subj "/CN=mycojobs tenants" -days 3650 \
    -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
fi
for server in "$@"; do
  name=${server%%=*} addresses=${server#*=}
  names=
  for address in ${addresses//,/ }; do
    kind=DNS
    [[ $address =~ ^[0-9.]+$ || $address == *:* ]] && kind=IP
    names+=${names:+,}$kind:$address
  done
  openssl req "${new_key[@]}" -keyout "$folder/$name.key.new" -subj "/CN=$name" 2>/dev/null |
    openssl x509 -req -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -days 365 -out "$folder/$name.crt.new" \
      -extfile <(printf '%s\n' "subjectAltName=$names" extendedKeyUsage=serverAuth keyUsage=critical,digitalSignature \
        basicConstraints=critical,CA:FALSE subjectKeyIdentifier=hash authorityKeyIdentifier=keyid) 2>/dev/null
  mv "$folder/$name.key.new" "$folder/$name.key"
  mv "$folder/$name.crt.new" "$folder/$name.crt"
done
chmod 644 "$folder"/*.crt
