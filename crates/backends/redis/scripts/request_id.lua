-- The end of every script: adds the id of the request, its last argument, after the fields of the reply. ADR 0033.
--
-- A reply that is no list becomes the only field. So does an error: it stays an error, with the id beside it.

local fields = reply()
if type(fields) ~= 'table' or fields.err then return { fields, ARGV[#ARGV] } end
fields[#fields + 1] = ARGV[#ARGV]
return fields
