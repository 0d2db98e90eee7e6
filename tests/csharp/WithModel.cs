using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>What all tests use: a runtime, and a tiny model of 2 layers and 320 ids.</summary>
    internal static class Shared
    {
        internal static readonly string Source = Environment.GetEnvironmentVariable("QUIRE_SOURCE");
        internal static readonly string TinyModel = Path.Combine(Source, "tests/golden/models/text_256");
        internal static readonly string Adapters = Path.Combine(Source, "tests/golden/adapters");

        private static readonly Lazy<Runtime> runtime =
            new Lazy<Runtime>(() => new Runtime(new RuntimeOptions { ThreadCount = 2 }));

        private static readonly Lazy<Model> model = new Lazy<Model>(() => Runtime.LoadModel(TinyModel));

        internal static Runtime Runtime
        {
            get { return runtime.Value; }
        }

        internal static Model Model
        {
            get { return model.Value; }
        }

        internal static void Close()
        {
            if (runtime.IsValueCreated) runtime.Value.Dispose();
        }

        /// <summary>Ids that are no control tokens, of a text as long as wanted.</summary>
        internal static int[] Ids(int count)
        {
            return Enumerable.Range(0, count).Select(index => 3 + index % 300).ToArray();
        }
    }

    /// <summary>A test with sessions and files that go with it.</summary>
    internal abstract class WithModel : IDisposable
    {
        private readonly List<IDisposable> opened = new List<IDisposable>();
        private string folder;

        protected static Runtime Runtime
        {
            get { return Shared.Runtime; }
        }

        protected static Model Model
        {
            get { return Shared.Model; }
        }

        protected string Folder
        {
            get
            {
                if (folder == null)
                {
                    folder = Path.Combine(Path.GetTempPath(), "quire-" + Guid.NewGuid().ToString("N"));
                    Directory.CreateDirectory(folder);
                }
                return folder;
            }
        }

        public void Dispose()
        {
            foreach (IDisposable item in opened) item.Dispose();
            if (folder != null) Directory.Delete(folder, true);
        }

        protected T Keep<T>(T item) where T : IDisposable
        {
            opened.Add(item);
            return item;
        }

        protected Session NewSession(string strategy = "dca")
        {
            return Keep(Model.CreateSession(strategy));
        }

        protected Session NewSession(SessionOptions options)
        {
            return Keep(Model.CreateSession(options));
        }

        protected Session Fed(string text = "The reader turns the leaves", string strategy = "dca")
        {
            Session session = NewSession(strategy);
            session.Feed(text);
            return session;
        }

        /// <summary>One that will read for so long that it can be stopped on the way, whatever the machine.</summary>
        protected Session LongReader(int count = 200000)
        {
            Session session = NewSession(new SessionOptions
            {
                Strategy = "dca",
                Overflow = OverflowPolicy.Extrapolate,
                PrefillBlock = 16
            });
            session.FeedTokens(Shared.Ids(count));
            return session;
        }

        protected static StreamOptions Tokens(int count)
        {
            return new StreamOptions { MaxTokens = count, IgnoreEos = true };
        }

        protected static List<Event> Events(Session session, StreamOptions options)
        {
            using (EventStream stream = session.Open(options)) return stream.ToList();
        }

        protected static int[] Ids(IEnumerable<Event> events)
        {
            return events.Where(next => next.Kind == EventKind.Token).Select(next => next.Token).ToArray();
        }

        protected static int[] Ids(Session session, StreamOptions options)
        {
            return Ids(Events(session, options));
        }
    }
}
