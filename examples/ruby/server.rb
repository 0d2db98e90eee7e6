# frozen_string_literal: true

# Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of the session, on
# a thread.
#
#     ruby server.rb MODEL_DIR FILE HOST:PORT
#
# The body of a POST is a question, and that of the response is the answer, which is sent as it comes:
#
#     curl -N --data 'What is it about?' http://127.0.0.1:8080/
#
# Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server.
require "quire"
require "socket"
require "timeout"

MAX_BYTES = 64 * 1024 # of a question
MAX_LINE = 8 * 1024 # bytes of a header
MAX_TOKENS = 200 # of an answer
SECONDS = 30 # that a question may take to come
FORKING = Mutex.new # a session is for one thread at a time

# Why a request is not answered: the status.
class Refused < StandardError; end

# A line of a request's head; empty: its end, or that of what the client sends.
def read_line(client)
  line = client.gets("\r\n", MAX_LINE).to_s
  raise Refused, "431 Request Header Fields Too Large" if line.bytesize >= MAX_LINE && !line.end_with?("\r\n")

  line.chomp("\r\n")
end

# The body of a request.
def read_question(client)
  method = read_line(client).split.first
  length = nil
  until (header = read_line(client)).empty?
    length = Integer(header[/\d+/], 10) if header.match?(/\Acontent-length:\s*\d+\s*\z/i)
  end
  raise Refused, "405 Method Not Allowed\r\nAllow: POST" if method != "POST"
  raise Refused, "411 Length Required" unless length
  raise Refused, "413 Content Too Large" if length > MAX_BYTES

  question = client.read(length)
  raise EOFError, "the client left" if question.nil? || question.bytesize < length
  raise Refused, "400 Bad Request" unless question.force_encoding(Encoding::UTF_8).valid_encoding?

  question
end

def refuse(client, status)
  client.write("HTTP/1.1 #{status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
  client.close_write
  IO.copy_stream(client, IO::NULL, MAX_BYTES * 16) # a client that is still sending would not see the response otherwise
end

def answer(client, session, question)
  session << " #{question}"
  client.write("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked\r\n" \
               "Connection: close\r\n\r\n")
  session.stream(max_tokens: MAX_TOKENS) do |stream|
    stream.each do |event|
      # While the question is read, too, when there is nothing to write.
      raise EOFError, "the client left" if client.read_nonblock(1, exception: false).nil?

      client.write("#{event.text.bytesize.to_s(16)}\r\n#{event.text}\r\n") unless event.text.empty?
    end
  end
  client.write("0\r\n\r\n")
end

# Does what one connection asks for.
def serve(client, document)
  client.setsockopt(:TCP, :NODELAY, true)
  begin
    question = Timeout.timeout(SECONDS) { read_question(client) }
  rescue Refused => refused
    return Timeout.timeout(SECONDS) { refuse(client, refused.message) }
  end
  session = FORKING.synchronize { document.fork }
  answer(client, session, question)
rescue Quire::Error, SystemCallError, IOError, Timeout::Error => error
  warn "a request ended early: #{error.message}" # and so did the response, which has no last chunk
ensure
  session&.close
  client.close
end

path, file, address = ARGV
host, port = address&.match(/\A(.+):(\d+)\z/)&.captures
abort "server.rb MODEL_DIR FILE HOST:PORT" unless port

Quire::Runtime.open do |runtime|
  document = runtime.load(path).session("dca").feed(File.read(file))
  document.prefill
  server = TCPServer.new(host, port)
  puts "listening at http://#{host}:#{server.local_address.ip_port}/"
  $stdout.flush
  loop do
    client = server.accept
    Thread.new { serve(client, document) }
  rescue SystemCallError, ThreadError => error # there are no descriptors or threads left
    warn error.message
    client ? client.close : sleep(0.1)
  end
rescue SignalException # Ctrl-C, or SIGTERM
  server&.close
end
