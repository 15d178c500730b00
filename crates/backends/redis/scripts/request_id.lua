-- What every script ends with: the id of the request, its last argument, after the fields of the reply. A reply that is no
-- list is the only field. An error stays one, and has its id beside it.

local fields = reply()
if type(fields) ~= 'table' or fields.err then return { fields, ARGV[#ARGV] } end
fields[#fields + 1] = ARGV[#ARGV]
return fields
