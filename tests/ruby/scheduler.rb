# frozen_string_literal: true

# As little of a Fiber scheduler as these tests need: fibers that wait for IO, and for other threads.
class Scheduler
  class << self
    attr_accessor :n_waits
  end
  self.n_waits = 0

  def initialize
    @waiting = {} # fiber => IO
    @blocked = {}
    @ready = Thread::Queue.new
    @urgent, @alarm = IO.pipe
  end

  def fiber(&block)
    Fiber.new(blocking: false, &block).tap(&:resume)
  end

  def io_wait(io, _events, _timeout)
    self.class.n_waits += 1
    @waiting[Fiber.current] = io
    Fiber.yield
    IO::READABLE
  end

  def block(_blocker, _timeout = nil)
    @blocked[Fiber.current] = true
    Fiber.yield
  end

  def unblock(_blocker, fiber)
    @ready << fiber
    @alarm.write_nonblock(".")
  end

  def kernel_sleep(_duration = nil)
    Fiber.yield
  end

  def close
    until @waiting.empty? && @blocked.empty?
      readable, = IO.select(@waiting.values + [@urgent])
      @urgent.read_nonblock(16) if readable.include?(@urgent)
      woken = @waiting.select { |_, io| readable.include?(io) }.keys
      woken.each { |fiber| @waiting.delete(fiber) }
      woken << @ready.pop.tap { |fiber| @blocked.delete(fiber) } until @ready.empty?
      woken.each(&:resume)
    end
  end
end
